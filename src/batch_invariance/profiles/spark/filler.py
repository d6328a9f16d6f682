"""Filler: prose about a software team's days, and small functions that do nothing of interest.

Prose holds no digit, code no number above two, and neither holds a word of `words`, so that
nothing in it can be an answer or contradict a fact. A piece is made from a label and its index
alone: the filler of a prompt is a list of pieces, and a longer filler begins with the shorter one.
"""

from __future__ import annotations

from batch_invariance.invariance_diff.digest import counter_words
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.task import Body

# fmt: off
WHO = (
    "The morning team", "A new colleague", "The night crew", "One of the reviewers",
    "The platform group", "Somebody from support", "The intern", "The release manager",
    "The documentation group", "A visiting engineer", "The engineer on call",
    "The tooling group", "A volunteer from sales", "The student assistant",
)
DID = (
    "rewrote", "checked", "cleaned up", "postponed", "measured", "documented", "simplified",
    "reviewed", "took apart", "renamed", "tested", "traced", "explained", "moved",
)
THING = (
    "parser", "cache layer", "build script", "login page", "search box", "test bench",
    "message queue", "style guide", "backup job", "error log", "upload form", "linker",
    "type checker", "help page", "release branch", "import hook", "color picker",
    "spell checker", "retry loop", "start screen", "event stream", "old wiki",
)
WHEN = (
    "on Monday", "on Tuesday", "on Wednesday", "on Thursday", "on Friday", "before lunch",
    "late in the evening", "over the weekend", "after the meeting", "during the freeze",
    "at the end of the month", "while the office was quiet", "in one long afternoon",
)
WHY = (
    "because the old one was difficult to read", "since nobody used it any more",
    "so that new people find their way", "to make room for what comes next",
    "after a long talk in the hallway", "although nobody had asked for it",
    "and wrote a short summary of it", "without touching its public interface",
    "and went home early", "because two customers had complained",
    "to see whether the tests would notice", "and left a comment for the next reader",
)
VIEW = (
    "Everyone agreed that", "Hardly anyone noticed that", "It turned out that",
    "The minutes say that", "A few people doubted that", "In the end it was clear that",
    "The chat history shows that", "It came as a surprise that",
)
STATE = (
    "was slower than expected", "worked on the first try", "needed one more review",
    "had grown too large", "behaved differently on the laptop", "was in good shape",
    "had no tests of its own", "could wait until spring", "depended on an old library",
    "ran well under load", "was easier to read than before", "had been forgotten",
)
GATHER = (
    "align", "batch", "collect", "count", "drop", "filter", "flatten", "gather", "group",
    "join", "list", "mark", "merge", "order", "pad", "prune", "reduce", "scan", "sort", "trim",
)
SORTS = (
    "blank", "broken", "cached", "early", "empty", "fresh", "hidden", "idle", "late", "local",
    "loose", "nested", "new", "old", "open", "plain", "recent", "remote", "stale", "visible",
)
OBJECTS = (
    "blocks", "buffers", "cells", "columns", "files", "frames", "headers", "hooks", "links",
    "lines", "nodes", "pages", "parts", "paths", "rows", "rules", "slots", "tables", "tokens",
)
TAGS = (
    "api", "app", "bench", "board", "branch", "build", "cache", "chat", "clean", "code",
    "desk", "draft", "error", "fix", "form", "guide", "help", "issue", "job", "log", "loop",
    "main", "merge", "page", "parse", "patch", "plan", "queue", "read", "release", "review",
    "room", "script", "search", "style", "task", "team", "test", "tool", "type", "user", "week",
)
# fmt: on
_FUNCTIONS = (
    """\
def {name}({many}):
    kept = []
    for {one} in {many}:
        if {one}:
            kept.append({one})
    return kept""",
    """\
def {name}({many}, wanted):
    return [{one} for {one} in {many} if {one} in wanted]""",
    """\
def {name}({many}):
    seen = set()
    for {one} in {many}:
        if {one} in seen:
            return {one}
        seen.add({one})
    return None""",
    """\
def {name}({many}, size):
    while len({many}) < size:
        {many}.append(None)
    return {many}""",
    """\
def {name}({many}, other):
    for {one} in other:
        if {one} not in {many}:
            {many}.append({one})
    return len({many})""",
    """\
def {name}({many}):
    first = {many}[:1]
    rest = {many}[1:]
    return rest + first""",
    """\
def {name}({many}, start=0):
    for index, {one} in enumerate({many}[start:]):
        if not {one}:
            return index + start
    return -1""",
    """\
def {name}({many}):
    text = " ".join(str({one}) for {one} in {many})
    return text.strip().lower()""",
    """\
def {name}({many}):
    left, right = 0, len({many}) - 1
    while left < right:
        {many}[left], {many}[right] = {many}[right], {many}[left]
        left, right = left + 1, right - 1
    return {many}""",
    """\
def {name}({many}, check):
    good = [{one} for {one} in {many} if check({one})]
    bad = [{one} for {one} in {many} if not check({one})]
    return good, bad""",
)
_NAMES = len(GATHER) * len(SORTS) * len(OBJECTS)
_STRIDE = 2963  # a prime that does not divide _NAMES: every name comes once before one repeats


def piece(body: Body, label: str, index: int) -> str:
    """Return the sentence or the function number `index` of a filler."""
    draw = Draw(f"{label}/{index}")
    return _sentence(draw) if body is Body.PROSE else _function(draw, label, index)


def tags(label: str, n: int) -> list[str]:
    """Return the first `n` tags of a filler: short words that most vocabularies have whole."""
    words = counter_words(f"{label}/tags")
    return [TAGS[next(words) % len(TAGS)] for _ in range(n)]


def _sentence(draw: Draw) -> str:
    thing, other = draw.some(THING, 2)
    state, also = draw.some(STATE, 2)
    who, did, view = draw.pick(WHO), draw.pick(DID), draw.pick(VIEW)
    kind = draw.between(1, 6)
    if kind == 1:
        return f"{who} {did} the {thing} {draw.pick(WHEN)}."
    if kind == 2:
        return f"{who} {did} the {thing} {draw.pick(WHY)}."
    if kind == 3:
        return f"{view} the {thing} {state}."
    if kind == 4:
        return f"{view} the {thing} {state}, much like the {other}."
    if kind == 5:
        return f"{view} the {thing} {state}, but the {other} {also}."
    return f"{who} {did} the {thing}, which {state}, and then the {other}."


def _function(draw: Draw, label: str, index: int) -> str:
    """Make a function whose name is not repeated within a filler of up to `_NAMES` functions."""
    at = (next(counter_words(f"{label}/names")) + index * _STRIDE) % _NAMES
    at, verb = divmod(at, len(GATHER))
    at, sort = divmod(at, len(SORTS))
    many = OBJECTS[at]
    name = f"{GATHER[verb]}_{SORTS[sort]}_{many}"
    return draw.pick(_FUNCTIONS).format(name=name, many=many, one=many.removesuffix("s"))
