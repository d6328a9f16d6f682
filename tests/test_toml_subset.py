"""The reader of the registry's TOML: equal to `tomllib` in what it takes, strict in the rest.

Every test has the expected values written down or generated, so that it means as much on 3.10,
which has no `tomllib`; where there is one, it has to agree.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from batch_invariance.errors import RegistryError
from batch_invariance.formats.toml_subset import read_toml_subset
from batch_invariance.live_invariance.toml_text import parse_toml
from batch_invariance.profiles import spark

HAS_TOMLLIB = sys.version_info >= (3, 11)
MANY = 1 << 20

VALID: list[tuple[str, dict[str, object]]] = [
    ("", {}),
    ("\n\n  \t\n", {}),
    ("# only a comment", {}),
    ("# tab\tand ünïcode\n", {}),
    ("a = 1", {"a": 1}),
    ("a=1#x", {"a": 1}),
    ("  a  =  1  # x\r\nb = 2\r\n", {"a": 1, "b": 2}),
    ("a = +7\nb = -0\nc = 1_000", {"a": 7, "b": 0, "c": 1000}),
    ("a = -9223372036854775808", {"a": -(1 << 63)}),
    ("a = 9223372036854775807", {"a": (1 << 63) - 1}),
    ("a = true\nb = false", {"a": True, "b": False}),
    ("true = true\n1 = 1\n-_ = 2", {"true": True, "1": 1, "-_": 2}),
    ("'' = 1\n\"b c\" = 2\n'd.e' = 3", {"": 1, "b c": 2, "d.e": 3}),
    ('"a\\tb" = 1', {"a\tb": 1}),
    ('a = ""\nb = \'\'', {"a": "", "b": ""}),
    ('a = "x # no comment"  # one', {"a": "x # no comment"}),
    (r'a = "\b\t\n\f\r\"\\"', {"a": '\b\t\n\f\r"\\'}),
    (r'a = "\u00e9\U0001F600\u0000"', {"a": "é😀\x00"}),
    (r'a = "\\u00e9\\"', {"a": r"\u00e9" + "\\"}),
    (r"a = 'C:\models\x'", {"a": r"C:\models\x"}),
    ("a = 'say \"x\"'\nb = \"it's\"", {"a": 'say "x"', "b": "it's"}),
    ("a = 'tab\there'", {"a": "tab\there"}),
    ("a = []\nb = [ ]\nc = [\n# nothing\n]", {"a": [], "b": [], "c": []}),
    ("a = [1, 2,]\nb = [1,2]", {"a": [1, 2], "b": [1, 2]}),
    ("a = [ # 1\n  'x', # 2\n\n  \"y\" # 3\n  , true\n]\nb = 1", {"a": ["x", "y", True], "b": 1}),
    ("[a]\n[b]", {"a": {}, "b": {}}),
    ("[ a . 'b.c' . \"d\" ] # x\ne = 1", {"a": {"b.c": {"d": {"e": 1}}}}),
    ("[a.b]\nc = 1\n[a]\nd = 2", {"a": {"b": {"c": 1}, "d": 2}}),
    ("[a]\nb = 1\n[a.c]\nd = 2", {"a": {"b": 1, "c": {"d": 2}}}),
    ("x = 1\n[a]\nx = 2", {"x": 1, "a": {"x": 2}}),
    ("[1.2]\n3 = 4", {"1": {"2": {"3": 4}}}),
    ("a = 'ends without a newline'", {"a": "ends without a newline"}),
    ("a = ' \u2028 '", {"a": " \u2028 "}),
]  # fmt: skip

# TOML, but more of it than a registry needs.
OUTSIDE: list[tuple[str, int, str]] = [
    ("a.b = 1", 1, "dotted keys are not read"),
    ("\n[[a]]", 2, "arrays of tables"),
    ("a = {b = 1}", 1, "inline tables"),
    ("\n\na = [[1]]", 3, "lists in lists"),
    ("a = [{}]", 1, "inline tables"),
    ('a = """x"""', 1, "multi-line strings"),
    ("a = '''\nx\n'''", 1, "multi-line strings"),
    ("a = 1.5", 1, "'1.5' is not read as a value"),
    ("a = 1e3", 1, "'1e3' is not read"),
    ("a = inf", 1, "'inf' is not read"),
    ("a = -nan", 1, "'-nan' is not read"),
    ("a = 0x1F", 1, "'0x1F' is not read"),
    ("a = 0o7", 1, "not read"),
    ("a = 0b1", 1, "not read"),
    ("a = 2024-01-31", 1, "'2024-01-31' is not read"),
    ("a = 07:32:00", 1, "not read"),
    ("a = 2024-01-31 07:32:00", 1, "not read"),
    ("a = 9223372036854775808", 1, "does not fit 64 bits"),
    ("a = -9223372036854775809", 1, "does not fit 64 bits"),
    ("[a.b.c.d.e.f.g.h.i]", 1, "more than 8 names"),
]

# No TOML at all.
BROKEN: list[tuple[str, int, str]] = [
    ("a", 1, "a key needs = instead of the end of the line"),
    ("a =", 1, "a value is missing before the end of the line"),
    ("a = # none", 1, "a value is missing before '#'"),
    ("= 1", 1, "a key cannot begin with '='"),
    ("ä = 1", 1, "a key cannot begin with 'ä'"),
    ("\ufeffa = 1", 1, "a key cannot begin with '\\ufeff'"),
    ("a = 1 b = 2", 1, "'b' is not the end of the line"),
    ("a = 1\u00a0", 1, "'\\xa0' is not the end"),
    ("a = 'x' 'y'", 1, "is not the end of the line"),
    ("a = yes", 1, "'yes' is not read as a value"),
    ("a = True", 1, "'True' is not read"),
    ("a = 01", 1, "'01' is not read"),
    ("a = 1__0", 1, "not read"),
    ("a = _1", 1, "not read"),
    ("a = ++1", 1, "not read"),
    ("a = \u0661", 1, "not read"),
    ('\na = "x', 2, 'the string that begins with " does not end on its line'),
    ("a = 'x\ny'", 1, "does not end on its line"),
    ('a = "x\\"', 1, "does not end on its line"),
    (r'a = "\x41"', 1, r"'\\x' is no escape"),
    (r'a = "C:\models"', 1, r"'\\m' is no escape"),
    (r'a = "\u12"', 1, r"'\\u' is no escape"),
    (r'a = "\ud800"', 1, r"'\\ud800' is no escape"),
    (r'a = "\U00110000"', 1, "is no escape"),
    ("a = 1\na = 2", 2, "the key 'a' is given twice"),
    ("a = 1\n'a' = 2", 2, "the key 'a' is given twice"),
    ("[a]\n[b]\n[a]", 3, "the table [a] is given twice"),
    ("[a]\n[ 'a' ]", 2, "is given twice"),
    ("[a.b]\n[a]\nb = 1", 3, "the key 'b' is given twice"),
    ("a = 1\n[a]", 2, "[a]: 'a' has a value already"),
    ("a = 1\n[a.b]", 2, "'a' has a value already"),
    ("[a]\nb = []\n[a.b.c]", 3, "'b' has a value already"),
    ("[]", 1, "a key cannot begin with ']'"),
    ("[a", 1, "a heading needs ] instead of the end of the line"),
    ("[a.]", 1, "a key cannot begin with ']'"),
    ("[.a]", 1, "a key cannot begin with '.'"),
    ("[a b]", 1, "a heading needs ] instead of 'b'"),
    ("[a]]", 1, "']' is not the end of the line"),
    ("[a] x = 1", 1, "'x' is not the end of the line"),
    ("\na = [1,\n2,\n3", 2, "the list that begins here does not end"),
    ("a = [1\n\n2]", 3, "a list needs , or ] instead of '2'"),
    ("a = [,]", 1, "a value is missing before ','"),
    ("a = [1,,2]", 1, "a value is missing before ','"),
    ("a = 1\n# bad \x00", 2, "the character U+0000 may not stand here"),
    ("a = 'x\x1b[31m'", 1, "U+001B may not stand here"),
    ("a = 1\rb = 2", 1, "U+000D may not stand here"),
    ("a = 'x\x7f'", 1, "U+007F may not stand here"),
    ("a = 1\x0b", 1, "U+000B may not stand here"),
    ("a = 1\x0c", 1, "U+000C may not stand here"),
]


def typed(value: object) -> object:
    """A value with its types, because True == 1."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return (type(value).__name__, value)


def fault(read: Callable[[str, str], dict[str, object]], text: str) -> str:
    with pytest.raises(RegistryError) as caught:
        read(text, "registry x")
    assert str(caught.value).startswith("registry x: ")
    assert "\n" not in str(caught.value)
    (issue,) = caught.value.issues
    return issue


@pytest.mark.parametrize(("text", "expected"), VALID)
def test_the_subset_means_what_it_says(text: str, expected: dict[str, object]) -> None:
    assert typed(read_toml_subset(text, "x")) == typed(expected)
    # On 3.11 and up this is tomllib.
    assert typed(parse_toml(text, "x")) == typed(expected)


@pytest.mark.parametrize(("text", "line", "said"), OUTSIDE)
def test_toml_beyond_the_subset_is_refused_by_its_line(text: str, line: int, said: str) -> None:
    issue = fault(read_toml_subset, text)
    assert issue.startswith(f"line {line}: ")
    assert said in issue
    if HAS_TOMLLIB:
        parse_toml(text, "x")


@pytest.mark.parametrize(("text", "line", "said"), BROKEN)
def test_what_is_no_toml_is_refused_by_its_line(text: str, line: int, said: str) -> None:
    issue = fault(read_toml_subset, text)
    assert issue.startswith(f"line {line}: ")
    assert said in issue
    assert fault(parse_toml, text)


def test_a_lone_surrogate_is_refused() -> None:
    assert "U+D800 may not stand here" in fault(read_toml_subset, "a = '\ud800'")


def test_the_example_registry_reads_alike() -> None:
    path = spark.__path__[0] + "/models.example.toml"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert read_toml_subset(text, "x") == parse_toml(text, "x")
    assert read_toml_subset(text, "x")["models"]


NESTED = [
    "a = " + "[" * MANY,
    "a = " + "{a=" * 1000,
    "a = " + "[{a=" * 1000,
    "[" * MANY,
    "[" + "a." * 100_000 + "a]",
    "[" + "a." * 100_000,
]


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_deep_nesting_is_one_fault(text: str) -> None:
    assert len(fault(read_toml_subset, text)) < 200


def test_deep_nesting_is_one_fault_for_every_reader() -> None:
    assert len(fault(parse_toml, "a = " + "[" * 100_000)) < 200
    assert len(fault(parse_toml, "a = " + "9" * 100_000)) < 200
    assert len(fault(parse_toml, ("[" + "b" * 100_000 + "]\n") * 2)) < 200


LONG_VALID = [
    "a = '" + "x" * MANY + "'",
    'a = "' + "\\t" * (MANY // 2) + '"',
    "a = [" + "1," * (MANY // 2) + "]",
    "a = [" + "\n" * MANY + "]",
    "#" * MANY,
    " " * MANY + "\n" + "\t" * MANY,
    "\n" * MANY,
    "x" * MANY + " = 1",
    "[" + "x" * MANY + "]",
    "".join(f"[t{i}]\nk = {i}\n" for i in range(50_000)),
    "".join(f"k{i} = {i} # c\n" for i in range(50_000)),
]
LONG_BROKEN = [
    "a = '" + "x" * MANY,
    'a = "' + "\\t" * (MANY // 2),
    'a = "' + '\\"' * (MANY // 2),
    "a = [" + "1," * (MANY // 2),
    "a = [" + "# \n" * (MANY // 3),
    "a = " + "9" * MANY,
    "a = " + "1_" * (MANY // 2),
    "a = " + " " * MANY,
    "x" * MANY,
    "[" + "x" * MANY,
    "a = " + "-" * MANY,
    ".".join("a" * (MANY // 2)),
    "'" * MANY,
    "\x00" * MANY,
]


@pytest.mark.parametrize("text", LONG_VALID, ids=range(len(LONG_VALID)))
def test_a_megabyte_is_read(text: str) -> None:
    """Anything quadratic in the length would not end."""
    assert isinstance(read_toml_subset(text, "x"), dict)


@pytest.mark.parametrize("text", LONG_BROKEN, ids=range(len(LONG_BROKEN)))
def test_a_megabyte_is_refused_in_a_short_line(text: str) -> None:
    assert len(fault(read_toml_subset, text)) < 200


SHORT_ESCAPES = {
    "\\": r"\\",
    '"': r"\"",
    "\t": r"\t",
    "\n": r"\n",
    "\r": r"\r",
    "\b": r"\b",
    "\f": r"\f",
}
PLAIN = "abz019 #=[]{},._-é\u2028\U0001f600"
SNIPPETS = ['"""', "'''", "[[", "]]", "1.5", "{a=1}", "a.b", *"\n\r\x00\x7f\ud800TZ:e+x\"'\\"]


class Writer:
    """Writes random documents of the subset together with what they mean."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def space(self) -> str:
        return self.rng.choice(["", "", " ", "\t", "  "])

    def gap(self) -> str:
        return self.rng.choice(["", "", " ", "\n", "\n\t", " # it's [\"\n", "\n\n#\n"])

    def line_end(self) -> str:
        return self.rng.choice(["\n", "\n", "\n\n", "\r\n", " \n", " # x = 'y\n", "#\r\n\n"])

    def text(self) -> str:
        return "".join(
            self.rng.choices(PLAIN + "'" + "".join(SHORT_ESCAPES), k=self.rng.randrange(6))
        )

    def quoted(self, text: str) -> str:
        if all(char in PLAIN for char in text) and self.rng.random() < 0.5:
            return f"'{text}'"
        return '"' + "".join(self.escaped(char) for char in text) + '"'

    def escaped(self, char: str) -> str:
        roll = self.rng.random()
        if roll < 0.1 and ord(char) < 0x10000:
            return f"\\u{ord(char):04x}"
        if roll < 0.2:
            return f"\\U{ord(char):08X}"
        return SHORT_ESCAPES.get(char, char)

    def key(self) -> tuple[str, str]:
        if self.rng.random() < 0.7:
            name = "".join(self.rng.choices("abc-_019", k=self.rng.randrange(1, 4)))
            return name, name
        name = self.text()
        return self.quoted(name), name

    def scalar(self) -> tuple[str, object]:
        kind = self.rng.randrange(4)
        if kind == 0:
            number = self.rng.choice([0, 7, 10, 1234567, (1 << 63) - 1]) * self.rng.choice([1, -1])
            shown = f"{number:_}" if self.rng.random() < 0.3 else str(number)
            return ("+" + shown if number > 0 and self.rng.random() < 0.3 else shown), number
        if kind == 1:
            flag = self.rng.random() < 0.5
            return ("true" if flag else "false"), flag
        text = self.text()
        return self.quoted(text), text

    def value(self) -> tuple[str, object]:
        if self.rng.random() < 0.7:
            return self.scalar()
        pairs = [self.scalar() for _ in range(self.rng.randrange(4))]
        shown = ",".join(self.gap() + written + self.gap() for written, _ in pairs)
        comma = "," if pairs and self.rng.random() < 0.3 else ""
        return f"[{shown}{comma}{self.gap()}]", [value for _, value in pairs]

    def document(self) -> tuple[str, dict[str, object]]:
        root: dict[str, object] = {}
        table, parts = root, []
        seen: set[tuple[str, ...]] = set()
        for _ in range(self.rng.randrange(12)):
            if self.rng.random() < 0.3:
                keys = [self.key() for _ in range(self.rng.randrange(1, 4))]
                path = tuple(name for _, name in keys)
                inner = None if path in seen else table_at(root, path)
                if inner is None:
                    continue
                seen.add(path)
                table = inner
                dotted = ".".join(self.space() + written + self.space() for written, _ in keys)
                parts.append(f"{self.space()}[{dotted}]{self.line_end()}")
            else:
                (written, name), (shown, value) = self.key(), self.value()
                if name in table:
                    continue
                table[name] = value
                equals = f"{self.space()}={self.space()}"
                parts.append(f"{self.space()}{written}{equals}{shown}{self.line_end()}")
        return "".join(parts), root

    def mutated(self, text: str) -> str:
        """Text with something taken out, repeated or put in at one to three places."""
        for _ in range(self.rng.randrange(1, 4)):
            at = self.rng.randrange(len(text) + 1)
            kind = self.rng.randrange(3)
            if kind == 0:
                text = text[:at] + text[at + self.rng.randrange(1, 4) :]
            elif kind == 1:
                copied = self.rng.randrange(len(text) + 1)
                text = text[:at] + text[copied : copied + self.rng.randrange(1, 9)] + text[at:]
            else:
                text = text[:at] + self.rng.choice(SNIPPETS) + text[at:]
        return text


def table_at(root: dict[str, object], path: tuple[str, ...]) -> dict[str, object] | None:
    """The table at a path, made on the way; None, and nothing made, where a value is in it."""
    table = root
    for depth, name in enumerate(path):
        inner = table.get(name)
        if inner is None:
            for missing in path[depth:]:
                below: dict[str, object] = {}
                table[missing] = below
                table = below
            return table
        if not isinstance(inner, dict):
            return None
        table = inner
    return table


def test_random_documents_mean_what_was_written() -> None:
    for seed in range(4000):
        text, expected = Writer(seed).document()
        assert typed(read_toml_subset(text, "x")) == typed(expected), (seed, text)
        assert typed(parse_toml(text, "x")) == typed(expected), (seed, text)


def test_the_writer_writes_every_form() -> None:
    everything = "".join(Writer(seed).document()[0] for seed in range(4000))
    forms = (
        "[",
        "''",
        '""',
        r"\u",
        r"\U",
        r"\t",
        "true",
        "false",
        "+7",
        "-1_234_567",
        ",\n",
        "\r\n",
    )
    for form in forms:
        assert form in everything, form


def test_what_is_taken_of_broken_documents_is_toml() -> None:
    taken = refused = 0
    for seed in range(20_000):
        writer = Writer(seed)
        text = writer.mutated(writer.document()[0])
        try:
            value = read_toml_subset(text, "x")
        except RegistryError:
            refused += 1
        else:
            taken += 1
            assert typed(parse_toml(text, "x")) == typed(value), (seed, text)
    assert taken >= 2000
    assert refused >= 2000
