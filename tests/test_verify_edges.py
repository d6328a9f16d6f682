"""The edges of reading a certificate again: what it must hold, and how a difference is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batch_invariance.errors import CertificateError
from batch_invariance.invariance_diff.verify import (
    cert_is_green,
    parse_certificate,
    verify_certificate,
)
from core_fixtures import Ideal, encode, recertify

RECORDS = Ideal([8] * 8).records()
LINES = encode(RECORDS)
DATA = recertify(RECORDS).to_bytes()


def _problems(document: dict[str, Any]) -> tuple[str, ...]:
    return verify_certificate(json.dumps(document).encode(), LINES).problems


@pytest.mark.parametrize("name", ["model", "ctx", "dispatch_n", "status", "source"])
def test_a_file_without_one_of_these_is_no_certificate(name: str) -> None:
    document = json.loads(DATA)
    del document[name]
    assert not cert_is_green(document)
    with pytest.raises(CertificateError) as refused:
        parse_certificate(json.dumps(document).encode())
    assert refused.value.issues == [f"lacks {name!r}"]


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_not_json_are_refused(constant: str) -> None:
    text = DATA.decode().replace('"promotable": true', f'"promotable": {constant}')
    assert text != DATA.decode()
    with pytest.raises(CertificateError, match=f"{constant} is not JSON"):
        parse_certificate(text.encode())


def test_other_order_of_the_same_values_is_a_matter_of_form() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: turned(value[name]) for name in reversed(value)}
        return [turned(inner) for inner in value] if isinstance(value, list) else value

    form = "the file is not in the form in which certificates are written"
    assert _problems(turned(json.loads(DATA))) == (form,)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 58, '"' + "x" * 58 + '"'),
        ("x" * 59, '"' + "x" * 56 + "..."),
        ("x" * 500, '"' + "x" * 56 + "..."),
        ({"b": 1, "a": 2}, '{"a": 2, "b": 1}'),
    ],
)
def test_a_value_is_shown_in_60_characters(value: object, shown: str) -> None:
    model = json.loads(DATA)["model"]
    problems = _problems({**json.loads(DATA), "model": value})
    assert problems == (f'model: says {shown}, the evidence gives "{model}"',)
