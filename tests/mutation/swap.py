"""Putting a mutant in place of the code that is already loaded.

A change inside a function is made by giving the function its changed code: whoever has imported
the function runs the mutant. A change of what runs at import can only be made by importing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CodeType, FunctionType

Pair = tuple[CodeType, CodeType]
"""The code of one function, as it is and as the mutant has it."""


def changed_functions(original: CodeType, mutated: CodeType) -> list[Pair] | None:
    """The functions that a mutant of a module changes; None where it changes what runs at import,
    or what a function closes over."""
    pairs: list[Pair] = []
    if not _same_at_import(original, mutated, pairs):
        return None
    changed = [(old, new) for old, new in pairs if old != new]
    if not changed or any(old.co_freevars != new.co_freevars for old, new in changed):
        return None
    return changed


def _same_at_import(old: CodeType, new: CodeType, functions: list[Pair]) -> bool:
    """Whether two bodies of a module or a class do the same; collects the functions in them."""
    if (old.co_code, old.co_names) != (new.co_code, new.co_names):
        return False
    if len(old.co_consts) != len(new.co_consts):
        return False
    for a, b in zip(old.co_consts, new.co_consts, strict=True):
        if not isinstance(a, CodeType) or not isinstance(b, CodeType):
            if type(a) is not type(b) or a != b:
                return False
        elif _is_class_body(a):
            if not _same_at_import(a, b, functions):
                return False
        else:
            functions.append((a, b))
    return True


def _is_class_body(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def put_in_place(pairs: list[Pair]) -> None:
    """Gives every loaded function of these its changed code. Raises LookupError where one of them
    is not loaded."""
    loaded = {}
    for function in _functions():
        loaded.setdefault(_key(function.__code__), []).append(function)
    for old, new in pairs:
        if _key(old) not in loaded:
            raise LookupError(f"{old.co_name} of {old.co_filename} is not loaded")
        for function in loaded[_key(old)]:
            function.__code__ = new


def _functions() -> Iterator[FunctionType]:
    return (thing for thing in gc.get_objects() if isinstance(thing, FunctionType))


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno
