"""TOML as this Python reads it: by `tomllib`, or before 3.11 by the subset reader."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib

    from batch_invariance.errors import RegistryError

    _LONGEST_HEAD = 120
    _LONGEST_TAIL = 40

    def parse_toml(text: str, what: str) -> dict[str, object]:
        """The tables of `text`; `what` names the file in the error.

        Raises:
            RegistryError: the text is no TOML, or too deep or too large to be read.
        """
        try:
            return tomllib.loads(text)
        except ValueError as error:
            # Besides TOMLDecodeError: a number with more digits than Python converts.
            raise RegistryError(what, [f"not TOML: {_shortened(str(error))}"]) from error
        except RecursionError as error:
            raise RegistryError(what, ["lists or tables are nested too deeply"]) from error

    def _shortened(text: str) -> str:
        """The fault's beginning and its end, which names the line."""
        if len(text) <= _LONGEST_HEAD + _LONGEST_TAIL:
            return text
        return f"{text[:_LONGEST_HEAD]} ... {text[-_LONGEST_TAIL:]}"

else:
    from batch_invariance.formats.toml_subset import read_toml_subset

    parse_toml = read_toml_subset
    """The tables of a text; see `read_toml_subset`."""
