"""A folder of certificates of every kind, and a reader of the page that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from batch_invariance.invariance_diff.model import Arm, Message, Trial
from batch_invariance.invariance_diff.records import Header
from ci_fixtures import AMBER, CANARY, RED, UNVERIFIED, diverging, edit, unchanged, write_cert
from core_fixtures import Change, Records, in_arm, on_header, on_trials, trial_of, with_result

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \u202eexe.gnp"
    " \"'quoted'\" &lt; ]]> </style></title></svg>"
)
HOSTILE_SHOWN = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31mred\\x1b[0m \\u202eexe.gnp"
    " \"'quoted'\" &lt; ]]> </style></title></svg>"
)
FOREIGN = (
    "my account number and postal address belong to nobody else here, kindly forward "
    "every invoice about gardening tools toward Rotterdam before Thursday evening"
)
VOID = frozenset({"meta", "br", "col", "hr", "link", "img", "input"})


def contaminated(records: Records) -> Records:
    """The prompt of one item in the answer to a companion of its wave."""
    victim = trial_of(records, in_arm(Arm.C, 0, 3))
    donor = next(
        r.key.item
        for r in records
        if isinstance(r, Trial)
        and (r.key.arm, r.key.pass_index, r.wave) == (Arm.C, 0, victim.wave)
        and r.key.item != 3
    )
    message = Message("user", FOREIGN)
    records = on_items({donor: {"messages": (message,)}})(records)
    return diverging(with_result(text=f"Sure: {FOREIGN}"))(records)


def on_items(changes: Mapping[int, Mapping[str, Any]]) -> Change:
    """Items of the work-set changed."""

    def changed(header: Header) -> Header:
        items = header.workset.items
        new = tuple(replace(item, **changes.get(i, {})) for i, item in enumerate(items))
        return replace(header, workset=replace(header.workset, items=new))

    return on_header(changed)


def hostile(records: Records) -> Records:
    """Markup, terminal sequences and a turn of writing in an id, an answer and the work-set."""
    changed = diverging(with_result(text=HOSTILE))(records)
    changed = on_items({3: {"id": HOSTILE, "family": HOSTILE}})(changed)
    return on_trials(lambda trial: trial.key.item == 3, named(HOSTILE))(changed)


def named(item_id: str) -> Callable[[Trial], Trial]:
    return lambda trial: replace(trial, item_id=item_id)


def make_folder(folder: Path) -> Path:
    """GREEN, RED, AMBER, UNVERIFIED, a canary, one without evidence, one edited, a broken file."""
    changes: dict[str, Change] = {
        "green": unchanged,
        "red": RED,
        "amber": AMBER,
        "unverified": UNVERIFIED,
        "canary": CANARY,
    }
    for name, change in changes.items():
        write_cert(folder / name, change, model=name)
    write_cert(folder / "hostile", hostile, model=HOSTILE)
    alone = write_cert(folder / "alone", unchanged, model="alone")
    alone.with_suffix(".evidence.jsonl").unlink()
    edit(write_cert(folder / "edited", RED, model="edited"), _whitewash)
    (folder / "broken.json").write_text('{"model": "broken", "status": ', "utf-8")
    return folder


def _whitewash(cert: dict[str, object]) -> None:
    cert.update(status="green", verdict="GREEN", promotable=True, decision_reasons=[])


@dataclass
class Node:
    """An element of the page."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def walk(self) -> list[Node]:
        found = [self]
        for child in self.children:
            if isinstance(child, Node):
                found += child.walk()
        return found

    def all(self, tag: str, class_: str | None = None) -> list[Node]:
        return [n for n in self.walk() if n.tag == tag and (class_ is None or class_ in n.classes)]


class _Reader(HTMLParser):
    """Builds the tree, and accepts no tag that is not closed in its place."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("#root", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice"
        node = Node(tag, dict(attrs))
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def read_page(text: str) -> Node:
    """The page as a tree; fails where a tag is left open."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader._open == [reader.root]
    return reader.root


def sections(page: Node) -> dict[str, Node]:
    """Cell name -> its section."""
    return {section.all("h3")[0].text: section for section in page.all("details", "c")}
