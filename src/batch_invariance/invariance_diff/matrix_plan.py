"""A plan of many cells, and the groups of cells that share their arms A and A2.

The cells are every model at every context with every KV type and flag set at every N. A value that
is not stated (an empty tuple, None) is the registry's or the canary's, or that of `run-live`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batch_invariance.errors import FileFormatError, UsageError
from batch_invariance.invariance_diff.budget import KvType
from batch_invariance.invariance_diff.json_fields import JsonFields
from batch_invariance.invariance_diff.workset_json import show

VERSION = 1
KEYS = (
    *("version", "models", "ctx", "parallel", "kv_types", "flag_sets"),
    *("server_bin", "workset", "models_file", "models_dir", "passes", "max_tokens"),
)
MAX_CELLS = 1000
MOST = 1 << 31
DEFAULT_SET = "default"
"""The flag set of a plan that names none."""
_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,59}")


@dataclass(frozen=True, slots=True)
class KvPair:
    """The types of the KV cache, as llama-server spells them."""

    k: str
    v: str

    @property
    def label(self) -> str:
        """The pair as a part of a folder's name."""
        return f"kv-{self.k}" if self.k == self.v else f"kv-{self.k}-{self.v}"


@dataclass(frozen=True, slots=True)
class FlagSet:
    """Server flags under a name, which is that of a folder."""

    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """The axes of a matrix and what all its cells have in common.

    `models` are aliases of a registry, GGUF files and `canary:SPEC`. `ctx` is in tokens per slot,
    `parallel` in slots. Paths are as they were written.
    """

    models: tuple[str, ...] = ()
    ctx: tuple[int, ...] = ()
    parallel: tuple[int, ...] = ()
    kv_types: tuple[KvPair, ...] = ()
    flag_sets: tuple[FlagSet, ...] = ()
    server_bin: str | None = None
    workset: str | None = None
    models_file: str | None = None
    models_dir: str | None = None
    passes: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Cells that differ in N alone. `ctx` is None where the registry or the canary says it; `flags`
    are the words for the server; `folder` is where their files lie."""

    model: str
    ctx: int | None
    folder: str
    flags: tuple[str, ...]


def read_plan(value: Mapping[str, object], what: str) -> MatrixPlan:
    """The plan in an object that JSON or TOML gives; `what` names the file in the error.

    Raises FileFormatError with every fault: an unknown key, a wrong type, an empty list, a value
    given twice, a name that no folder can have.
    """
    fields = JsonFields(value)
    fields.only(KEYS)
    for key, given in value.items():
        if given is None:
            fields.fault(key, "is null; leave it out")
    if fields.count("version") != VERSION:
        fields.fault("version", f"must be {VERSION}")
    plan = MatrixPlan(
        models=_texts(fields, "models"),
        ctx=_numbers(fields, "ctx"),
        parallel=_numbers(fields, "parallel"),
        kv_types=_kv_types(fields),
        flag_sets=_flag_sets(fields),
        server_bin=_word(fields, "server_bin"),
        workset=_word(fields, "workset"),
        models_file=_word(fields, "models_file"),
        models_dir=_word(fields, "models_dir"),
        passes=_number(fields, "passes"),
        max_tokens=_number(fields, "max_tokens"),
    )
    if fields.issues:
        raise FileFormatError(what, fields.issues)
    return plan


def kv_pair(text: str) -> KvPair:
    """`TYPE` or `K/V`. Raises UsageError for a type that llama-server does not know."""
    k, slash, v = text.partition("/")
    pair = KvPair(k, v if slash else k)
    for side in (pair.k, pair.v):
        KvType.parse(side)
    return pair


def flag_set(name: str, flags: Sequence[str]) -> FlagSet:
    """A flag set. Raises UsageError for a name that is no folder's."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"flag set {show(name)}: a name has 1 to 60 letters, digits and ._+- and begins with "
            "no dot"
        )
    return FlagSet(name, tuple(flags))


def groups_of(plan: MatrixPlan, common: Sequence[str] = ()) -> tuple[PlannedGroup, ...]:
    """The groups in the order to run them: model, then context, then flags, so that a model's file
    stays in memory. `common` are flags of every cell, before those of its set.

    Raises UsageError for a plan without a model, one of more than `MAX_CELLS` cells, one that
    states something twice.
    """
    if not plan.models:
        raise UsageError("no model: name one with --model, or in the plan file under models")
    sets = plan.flag_sets or (FlagSet(DEFAULT_SET, ()),)
    kvs: tuple[KvPair | None, ...] = plan.kv_types or (None,)
    _check_twice(plan, sets)
    n_cells = len(plan.models) * len(sets) * len(kvs)
    n_cells *= max(1, len(plan.ctx)) * max(1, len(plan.parallel))
    if n_cells > MAX_CELLS:
        raise UsageError(f"the plan has {n_cells} cells, at most {MAX_CELLS} go into one sweep")
    return tuple(
        PlannedGroup(
            model,
            ctx,
            chosen.name if kv is None else f"{chosen.name}__{kv.label}",
            (*(() if kv is None else ("-ctk", kv.k, "-ctv", kv.v)), *common, *chosen.flags),
        )
        for model in plan.models
        for ctx in plan.ctx or (None,)
        for chosen in sets
        for kv in kvs
    )


def _check_twice(plan: MatrixPlan, sets: Sequence[FlagSet]) -> None:
    axes: tuple[tuple[str, Sequence[object]], ...] = (
        ("model", plan.models),
        ("ctx", plan.ctx),
        ("parallel", plan.parallel),
        ("KV type", [kv.label for kv in plan.kv_types]),
        # A file system may not tell letters by their case.
        ("flag set", [entry.name.lower() for entry in sets]),
    )
    for name, values in axes:
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise UsageError(f"{name} {twice[0]} is named twice; name it once")


def _texts(fields: JsonFields, key: str) -> tuple[str, ...]:
    texts = fields.texts(key)
    if isinstance(fields.source.get(key), list) and not texts:
        fields.fault(key, "an empty list; leave it out or name one")
    for text in texts:
        if not text.strip():
            fields.fault(key, "an empty text")
    _once(fields, key, texts)
    return texts


def _numbers(fields: JsonFields, key: str) -> tuple[int, ...]:
    given = fields.source.get(key)
    if given is None:
        return ()
    if not isinstance(given, list) or not given:
        fields.fault(key, "is not a list of whole numbers from 1")
        return ()
    numbers = [value for value in given if type(value) is int and 1 <= value <= MOST]
    if len(numbers) < len(given):
        fields.fault(key, f"holds something that is no whole number from 1 to {MOST}")
    _once(fields, key, numbers)
    return tuple(numbers)


def _number(fields: JsonFields, key: str) -> int | None:
    value = fields.count(key)
    if value is not None and not 1 <= value <= MOST:
        fields.fault(key, f"is not from 1 to {MOST}")
    return value


def _word(fields: JsonFields, key: str) -> str | None:
    text = fields.text(key)
    if text is not None and (not text.strip() or "\0" in text):
        fields.fault(key, "names nothing")
    return text


def _once(fields: JsonFields, key: str, values: Sequence[object]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            fields.fault(key, f"{show(str(value))} is there twice")


def _kv_types(fields: JsonFields) -> tuple[KvPair, ...]:
    pairs = []
    for text in _texts(fields, "kv_types"):
        try:
            pairs.append(kv_pair(text))
        except UsageError as error:
            fields.fault("kv_types", str(error))
    return tuple(pairs)


def _flag_sets(fields: JsonFields) -> tuple[FlagSet, ...]:
    part = fields.part("flag_sets")
    if isinstance(fields.source.get("flag_sets"), dict) and not part.source:
        fields.fault("flag_sets", "is empty; leave it out or name one")
    sets = []
    for name, flags in part.source.items():
        if not isinstance(flags, list) or not all(isinstance(word, str) for word in flags):
            part.fault(name, 'is not a list of texts such as ["--flash-attn", "on"]')
            continue
        try:
            sets.append(flag_set(name, flags))
        except UsageError as error:
            fields.fault("flag_sets", str(error))
    return tuple(sets)
