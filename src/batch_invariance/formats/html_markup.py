"""HTML that is safe by construction: a plain text can only become an escaped one.

`element` takes texts and finished `Markup`; whatever is a `str` is escaped and made visible. No
other function of the report turns a string into `Markup`, but for constants of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished HTML."""

    html: str


Child = Markup | str | None
"""What may stand in an element; None stands for nothing."""
Attribute = str | int | float | bool | None
"""A value of an attribute; True is the bare attribute, False and None leave it out."""

NOTHING = Markup("")
_VOID = frozenset({"br", "col", "hr", "meta"})
_SELF_CLOSED = frozenset({"circle", "line", "path", "rect", "use"})


def visible(text: str) -> str:
    """`text` with everything but newlines and printable characters as an escape such as `\\x1b`.

    So terminal sequences, marks that turn the direction of writing and lone surrogates show as
    what they are.
    """
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def joined(children: Iterable[Child]) -> Markup:
    """Children one after another."""
    return Markup("".join(map(_html, children)))


def element(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """One element. A trailing `_` of an attribute's name is dropped, another is a hyphen."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        label = name.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(label)
        else:
            parts.append(f'{label}="{escape(visible(_attribute(value)))}"')
    opening = " ".join(parts)
    if tag in _VOID:
        return Markup(f"<{opening}>")
    if tag in _SELF_CLOSED and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{''.join(map(_html, children))}</{tag}>")


def _attribute(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _html(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.html
    return escape(visible(child), quote=False)
