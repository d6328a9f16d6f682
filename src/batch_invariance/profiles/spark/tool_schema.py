"""The schema of a tool in family E3: the part of JSON Schema that it needs, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batch_invariance.answer_values import same_json

_TYPES = ("boolean", "integer", "number", "string")
_PROPERTY_KEYS = frozenset({"type", "enum", "description"})
_OBJECT_KEYS = frozenset({"type", "properties", "required", "description"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its JSON type, the values it may have (any when None), and whether it must."""

    type: str
    choices: tuple[object, ...] | None
    required: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name and its arguments by name. Arguments beyond these are not valid."""

    name: str
    arguments: Mapping[str, Argument]

    def accepts(self, arguments: Mapping[str, object]) -> bool:
        """Tell whether arguments fit: all named, all that must be there, each of type and value.

        1.0 is a `number` and no `integer`; true is neither.
        """
        required = {name for name, argument in self.arguments.items() if argument.required}
        return required <= arguments.keys() <= self.arguments.keys() and all(
            _fits(value, self.arguments[name]) for name, value in arguments.items()
        )


def tool_of(schema: object) -> Tool:
    """Read a schema: `{"name": ..., "parameters": {"type": "object", ...}}`.

    Raises ValueError for anything else, and for every keyword that is not understood.
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        raise ValueError("a tool's schema must be an object with a name")
    parameters = schema.get("parameters")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise ValueError("a tool's parameters must be of type object")
    _understood(parameters, _OBJECT_KEYS)
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise ValueError("properties must be an object, and required a list")
    strange = [name for name in required if name not in properties]
    if strange:
        raise ValueError(f"required names {strange[0]!r}, which is no property")
    arguments = {name: _argument(name, one, name in required) for name, one in properties.items()}
    return Tool(schema["name"], arguments)


def _argument(name: str, schema: object, required: bool) -> Argument:
    if not isinstance(schema, dict) or schema.get("type") not in _TYPES:
        raise ValueError(f"property {name!r} must have one of the types {', '.join(_TYPES)}")
    _understood(schema, _PROPERTY_KEYS)
    choices = schema.get("enum")
    if choices is not None and not isinstance(choices, list):
        raise ValueError(f"the enum of property {name!r} must be a list")
    return Argument(schema["type"], None if choices is None else tuple(choices), required)


def _understood(schema: Mapping[str, object], known: frozenset[str]) -> None:
    unknown = sorted(schema.keys() - known)
    if unknown:
        raise ValueError(f"keyword {unknown[0]!r} of a schema is not supported")


def _fits(value: object, argument: Argument) -> bool:
    if argument.choices is not None and not any(same_json(value, c) for c in argument.choices):
        return False
    if isinstance(value, bool):
        return argument.type == "boolean"
    if isinstance(value, int):
        return argument.type in ("integer", "number")
    if isinstance(value, float):
        return argument.type == "number"
    return isinstance(value, str) and argument.type == "string"
