"""Where a scorer comes from: its module, imported, and its text, for the digest."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType

from batch_invariance.errors import ScorerError


def import_for(spec: str, module_name: str) -> ModuleType:
    """Import the module of the scorer that `spec` names, from the current directory too.

    Raises `ScorerError`.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ScorerError(
                f"scorer {spec!r}: there is no module {missing}; looked in {here!r} and in what"
                " Python has installed (set PYTHONPATH to look elsewhere)"
            ) from None
        raise ScorerError(
            f"scorer {spec!r}: importing {module_name} raised {one_line(error)}"
        ) from error


def source_of(part: type | FunctionType | ModuleType, *, alone: bool) -> object:
    """Return the source of `part`, or with `alone` unset of the whole module it stands in.

    Where there is no source (a notebook, `python -c`, a package without its .py files) it is
    the bytecode, as nested JSON lists; that depends on the Python version.
    """
    try:
        if not alone and not isinstance(part, ModuleType):
            return inspect.getsource(sys.modules[part.__module__])
        return inspect.getsource(part)
    except (OSError, TypeError, KeyError):
        return [[key, _bytecode(value)] for key, value in sorted(_members(part).items())]


def _members(part: type | FunctionType | ModuleType) -> Mapping[str, object]:
    """What stands in a class, or in a module's own classes as `Class.name`, or the function."""
    if isinstance(part, FunctionType):
        return {"": part}
    if isinstance(part, type):
        return vars(part)
    own = {k: v for k, v in vars(part).items() if getattr(v, "__module__", "") == part.__name__}
    inner = [(k, v) for k, v in own.items() if isinstance(v, type)]
    return {**own, **{f"{k}.{name}": one for k, v in inner for name, one in vars(v).items()}}


def _bytecode(value: object) -> object:
    """Turn code and the constants in it into JSON without addresses, paths or set order."""
    value = getattr(getattr(value, "__func__", value), "__code__", value)
    if isinstance(value, CodeType):
        constants = [_bytecode(constant) for constant in value.co_consts]
        return [value.co_code.hex(), value.co_names, value.co_varnames, constants]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    plain = isinstance(value, (str, bytes, int, float, complex, tuple, type(None)))
    return repr(value) if plain else type(value).__qualname__


def one_line(error: BaseException) -> str:
    """Show an exception on one line, control characters escaped, cut short."""
    text = " ".join(str(error).split())[:200]
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return f"{type(error).__name__}: {shown}"
