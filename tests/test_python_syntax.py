"""The normalised syntax of Python source: what is equal, what is not, and that nothing breaks."""

from __future__ import annotations

import hashlib
import sys
import warnings

import pytest

from batch_invariance.python_syntax import MAX_SOURCE_CHARS, normalised_syntax

CORPUS_DIGEST = "5b40186d405c54e036d5e3591149dd191c6b25b406f6b0fc58f1fd61ea18684e"
PLAIN = "def f(a, b=1):\n    total = a + b\n    return total\n"

SAME = (
    (PLAIN, "def f(a,b = 1,):  # adds\n\n  total=(a)+b;\n\n  return (total)"),
    (PLAIN, PLAIN.replace("\n", "\r\n")),
    (PLAIN, PLAIN.replace("\n", "\r")),
    (PLAIN, "def f(a: int, b: 'x' = 1) -> int | None:\n    total: int = a + b\n    return total"),
    (PLAIN, PLAIN.replace("a,", "a: list[dict[str, int]],").replace("b=", "b: tuple[int, ...]=")),
    (PLAIN, 'def f(a, b=1):\n    """Add."""\n    total = a + b\n    pass\n    return total'),
    ("def f(): pass", 'def f():\n    """Nothing."""'),
    ("def f(): pass", "def f(): ..."),
    ("x = 'a'", 'x = "a"'),
    ("x = 'ab'", "x = ('a'\n     'b')"),
    ("x = 'ab'", "x = u'a' r'b'"),
    ("x = 16", "x = 0x1_0"),
    ("x = 1000000.0", "x = 1e6"),
    ("if a:\n    b()", "if a:\n    b()\nelse:\n    pass"),
    ("f(1, 2)", "f(\n    1,\n    2,\n)"),
    ("x = a \\\n + b", "x = a + b"),
    ("x = f'{a}'", 'x = f"{a}"'),
    ("x = f'{a}' 'b'", 'x = (f"{a}"  # c\n  "b")'),
    ("x = rf'{a}'", "x = fR'{a}'"),
    ("return f'{a}'", "return(f'{a}')"),
    ("if a: b\nelif c: d", "if a:\n  b\nelse:\n  if c:\n    d"),
    ("async def f(x: str): return x", "async def f(x): return x"),
    ("try:\n a()\nfinally:\n pass", "try:\n a()\nfinally:\n 'nothing'"),
)

DIFFERENT = (
    (PLAIN, PLAIN.replace("total", "result")),
    (PLAIN, PLAIN.replace("(a, b", "(x, b").replace("a +", "x +")),
    (PLAIN, PLAIN.replace("b=1", "b=2")),
    (PLAIN, PLAIN.replace("a + b", "b + a")),
    (PLAIN, PLAIN + "f(1)\n"),
    ("x += 1", "x = x + 1"),
    ("x = 1", "x = 1.0"),
    ("x = 1", "x = True"),
    ("x = 'a'", "x = b'a'"),
    ("x = None", "x = ..."),
    ("not a in b", "a not in c"),
    ("a < b < c", "(a < b) < c"),
    ("a - (b - c)", "a - b - c"),
    ("x = f'{a}'", "x = '{a}'"),
    ("x = f'{a}'", "x = f'{a!r}'"),
    ("x = f'a' 'b'", "x = f'ab'"),
    ("x = f'{a}'\nf'{b}'", "x = f'{a}' f'{b}'"),
    ("x = f'{a}'", "x = _f0()"),
    ("x = f'{a}'", 'x = "\\x5ff0"'),
    ("def f(a): return a", "def f(*a): return a"),
    ("def f(a, /): return a", "def f(a): return a"),
    ("x = {**a}", "x = {None: a}"),
    ("for a in b:\n c()", "for a in b:\n c()\nelse:\n d()"),
    ("async def f(): pass", "def f(): pass"),
    ("from .a import b", "from a import b"),
    ("x: int", "pass"),
    ("x = [i for i in a]", "x = [i async for i in a]"),
    ("match a:\n case None: b()", "match a:\n case True: b()"),
    ("match a:\n case b: c()", "match a:\n case b.d: c()"),
    # annotations that can fail, be read, or mean something
    ("def f(a: List[int]): return a", "def f(a): return a"),
    ("def f(a: g()): return a", "def f(a): return a"),
    ("def f(a: None | None): return a", "def f(a): return a"),
    ("def f(a: 'x' | int): return a", "def f(a): return a"),
    ("def f(a: int[str]): return a", "def f(a): return a"),
    ("@d\ndef f(a: int): return a", "@d\ndef f(a): return a"),
    ("class C:\n def f(self, a: int): return a", "class C:\n def f(self, a): return a"),
    ("class C:\n a: int = 1", "class C:\n a = 1"),
    ("x: int = 1", "x = 1"),
    ("int = 3\ndef f(a: int | None): return a", "int = 3\ndef f(a): return a"),
    ("def f(a: int): return f.__annotations__", "def f(a): return f.__annotations__"),
    ("def f():\n 'd'\n return f.__doc__", "def f():\n return f.__doc__"),
    ("def f():\n 'd'\n return getattr(f, '__doc__')", "def f():\n return getattr(f, '__doc__')"),
    ("def f():\n 'd'\n return f'{f.__doc__}'", "def f():\n return f'{f.__doc__}'"),
    ("def f():\n global x\n x: int = 1", "def f():\n global x\n x = 1"),
    ("from m import *\ndef f(a: int): pass", "from m import *\ndef f(a): pass"),
    ("def f():\n x: int\n return x", "def f():\n return x"),
)

NO_SOURCE = (
    "def f(:",
    "Sure, here it is",
    "x = 'open",
    'x = """open',
    "x = 1\n  y = 2",
    "x\0y",
    "x = '\0'",
    "x = f'\0'",
    "x = '\ud800'",
    "x = f'\ud800'",
    "\u00e9 = 1",
    "x = \u0661",
    "x = " + "9" * 5000,
    "x = 0x" + "f" * 5000,
    "x" * 601,
    "(" * 81 + ")" * 81,
    "[-(lambda:" * 150 + "1" + ")]" * 150,
    "(" * 10_000,
    "x = " + "-" * 5000 + "1",
    "x = " + "+".join(["a"] * 9000),
    "x" + ".a" * 9000,
    "if a:\n b\n" + "elif a:\n b\n" * 500,
    "".join(" " * i + "if a:\n" for i in range(120)) + " " * 120 + "b",
    "not " * 4900 + "a",
    "a" * (MAX_SOURCE_CHARS + 1),
    "#" * 1_000_000,
    # 3.11 and later
    "try:\n a()\nexcept* B:\n c()",
    "a[*b]",
    "def f(*a: *b): pass",
    "type X = int",
    "def f[T](a: T): pass",
    "class C[T]: pass",
    "x = f'{a['b']}'",
    'x = f"{a["b"]}"',
    "x = f'{\na}'",
    # where a stand-in for an f-string could pass for a name
    "f'x' = 1",
    "def f'x': pass",
    "def f'x'(): pass",
    "class f'x': pass",
    "match a:\n case f'x': b()",
    "import f'x'",
    "x.f'a'",
    "x'a'f'b'",
    "f(f'x'=1)",
    "del f'x'",
    "for f'x' in a: b()",
    "x = b'a' f'b'",
    "x = ff'a'",
    "x = bu'a'",
    "x = f'a' \\ 'b'",
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_cannot_matter_is_no_difference(one: str, other: str) -> None:
    assert normalised_syntax(one) is not None
    assert normalised_syntax(one) == normalised_syntax(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_can_matter_is_a_difference(one: str, other: str) -> None:
    assert normalised_syntax(one) is not None
    assert normalised_syntax(other) is not None
    assert normalised_syntax(one) != normalised_syntax(other)


@pytest.mark.parametrize("source", NO_SOURCE, ids=lambda source: ascii(source[:20]))
def test_what_is_no_source_is_none(source: str) -> None:
    assert normalised_syntax(source) is None


def test_a_tree_is_written_in_one_way() -> None:
    assert normalised_syntax("def f(a): return a - 10") == (
        "Module(body=[FunctionDef(args=arguments(args=[arg(arg='a',),],),body=[Return(value="
        "BinOp(left=Name(id='a',),op=Sub(),right=Constant(0xa),),),],name='f',),],)"
    )
    assert normalised_syntax("x = f'{a}\\n'") == (
        "Module(body=[Assign(targets=[Name(id='x',),],value=FString((('f', '{a}\\\\n'),)),),],)"
    )


def test_odd_literals_neither_warn_nor_fail_under_strict_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normalised_syntax("x = '\\d' if 1is 1 else 2") is not None


def test_a_full_stack_is_no_crash() -> None:
    def dig(depth: int) -> str | None:
        return normalised_syntax(PLAIN) if depth == 0 else dig(depth - 1)

    results: set[str | None] = set()
    for depth in range(0, sys.getrecursionlimit(), 20):
        try:
            results.add(dig(depth))
        except RecursionError:
            break
    assert results <= {normalised_syntax(PLAIN), None}


def test_every_python_gives_the_same_trees() -> None:
    """The digest is pinned, so each Python that runs the tests is compared with all others."""
    assert _corpus_digest() == CORPUS_DIGEST


def _corpus_digest() -> str:
    sources = [source for pair in (*SAME, *DIFFERENT) for source in pair] + list(NO_SOURCE)
    whole = "\n".join(f"{normalised_syntax(source)}" for source in sources)
    return hashlib.sha256(whole.encode("ascii")).hexdigest()
