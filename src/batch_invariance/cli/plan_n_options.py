"""The arguments of `plan-n`, checked all at once, and what they come to."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass

from batch_invariance.errors import UsageError
from batch_invariance.formats.gguf import GgufHeader, model_shape
from batch_invariance.invariance_diff.budget import KvType, ModelShape, ServerSettings
from batch_invariance.invariance_diff.kv_cache import BlockCache
from batch_invariance.invariance_diff.rules import CTX_STEP, MAX_SLOTS
from batch_invariance.live_invariance.launch import validate_ctx
from batch_invariance.live_invariance.model_file import read_model

GIB = 1 << 30
MAX_GIB = 1e6
MAX_CTX = 1 << 30
MAX_BATCH = 1 << 20
MAX_LAYERS = 4096
MAX_LENGTH = 1 << 24
FEED_FORWARD_WIDTHS = 4
"""Feed-forward length in embeddings where none is given; it moves the compute buffer alone."""
REQUIRED = ("layers", "heads", "kv_heads", "embedding", "vocab", "weights_gb")
LENGTHS = ("key_length", "value_length")
OPTIONAL = ("head_dim", "feed_forward")


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The model of a plan: its shape, and its header where a file was read."""

    name: str
    shape: ModelShape
    header: GgufHeader | None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned. `memory_bytes` is an assumed amount of available memory; None where
    the machine is to be asked. `cap_bytes` is the most that a server may take; None for no cap."""

    model: PlannedModel
    contexts: tuple[int, ...]
    settings: ServerSettings
    max_n: int
    cap_bytes: int | None
    memory_bytes: int | None


class _Reader:
    """Reads numbers out of the arguments and collects what is wrong with them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.issues: list[str] = []
        self._values = vars(args)

    def given(self, name: str) -> bool:
        """Whether the option is there."""
        return self._values[name] is not None

    def whole(self, name: str, most: int, default: int = 1) -> int:
        """A whole number from 1 to `most`; `default` where it is absent or wrong."""
        text = self._values[name]
        return default if text is None else self.whole_of(_option(name), text, most, default)

    def whole_of(self, option: str, text: str, most: int, default: int = 1) -> int:
        """The same of any text."""
        if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) and 1 <= int(text) <= most:
            return int(text)
        self.issues.append(f"{option} {text!r} is no whole number from 1 to {most}")
        return default

    def gib(self, name: str) -> int | None:
        """A size in GiB as bytes; None where it is absent or wrong."""
        text = self._values[name]
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MAX_GIB:
            self.issues.append(f"{_option(name)} {text!r} is no number above 0, at most 1000000")
            return None
        return int(value * GIB)


def plan_request(args: argparse.Namespace) -> PlanRequest:
    """The request that the arguments make.

    Raises:
        UsageError: numbers that cannot be, all of them in one line; or no such file.
        GgufError: the file is no model.
    """
    reader = _Reader(args)
    contexts = _contexts(args.ctx, reader)
    settings = _settings(args, reader)
    max_n = reader.whole("max_n", MAX_SLOTS)
    cap, memory = reader.gib("max_footprint_gb"), reader.gib("memory_gb")
    shape = _described_shape(args, reader)
    if reader.issues:
        raise UsageError("; ".join(reader.issues))
    if shape is None:
        headers, _ = read_model(args.model)
        name = args.model.name
        model = PlannedModel(name, model_shape(headers, f"model {name}"), headers[0])
    else:
        model = PlannedModel("the model described", shape, None)
    return PlanRequest(model, contexts, settings, max_n, cap, memory)


def _contexts(texts: list[str], reader: _Reader) -> tuple[int, ...]:
    """Every context asked for once, in order."""
    found: dict[int, None] = {}
    for text in ",".join(texts).split(",") if texts else []:
        before = len(reader.issues)
        ctx = reader.whole_of("--ctx", text.strip(), MAX_CTX, CTX_STEP)
        if len(reader.issues) == before:
            try:
                validate_ctx(ctx)
            except UsageError as error:
                reader.issues.append(str(error))
        found[ctx] = None
    if not texts:
        reader.issues.append("--ctx is missing: give the tokens per slot, as in --ctx 8192")
    return tuple(found)


def _settings(args: argparse.Namespace, reader: _Reader) -> ServerSettings:
    keys, slash, values = args.kv.partition("/")
    types = []
    for label in (keys, values if slash else keys):
        try:
            types.append(KvType.parse(label))
        except UsageError as error:
            types.append(KvType.F16)
            if str(error) not in reader.issues:
                reader.issues.append(str(error))
    if args.flash_attn not in ("on", "off"):
        reader.issues.append(f"--flash-attn {args.flash_attn!r} is neither on nor off")
    return ServerSettings(
        k_type=types[0],
        v_type=types[1],
        flash_attention=args.flash_attn != "off",
        batch_tokens=reader.whole("batch_size", MAX_BATCH),
        ubatch_tokens=reader.whole("ubatch_size", MAX_BATCH),
        kv_unified=args.kv_unified,
        swa_full=args.swa_full,
    )


def _described_shape(args: argparse.Namespace, reader: _Reader) -> ModelShape | None:
    """The shape that the options describe; None where a file is to be read, or they are wrong."""
    given = [name for name in (*REQUIRED, *LENGTHS, *OPTIONAL) if reader.given(name)]
    if args.model is not None:
        if given:
            options = ", ".join(_option(name) for name in given)
            reader.issues.append(f"{options}: --model states these itself; give one or the other")
        return None
    missing = [name for name in REQUIRED if not reader.given(name)]
    lengths = [name for name in LENGTHS if not reader.given(name)]
    if lengths and not reader.given("head_dim"):
        missing += lengths if len(lengths) == 1 else ["head_dim"]
    if missing:
        options = ", ".join(_option(name) for name in missing)
        instead = "" if given else ", or a file with --model"
        reader.issues.append(f"a model without a file needs {options}{instead}")
    head = reader.whole("head_dim", MAX_LENGTH)
    embedding = reader.whole("embedding", MAX_LENGTH)
    key = reader.whole("key_length", MAX_LENGTH, head)
    block = BlockCache(
        heads=reader.whole("kv_heads", MAX_LENGTH),
        key_length=key,
        value_length=reader.whole("value_length", MAX_LENGTH, head),
    )
    return ModelShape(
        blocks=(block,) * reader.whole("layers", MAX_LAYERS),
        head_count=reader.whole("heads", MAX_LENGTH),
        key_length=key,
        embedding_length=embedding,
        feed_forward_length=reader.whole(
            "feed_forward", MAX_LENGTH, FEED_FORWARD_WIDTHS * embedding
        ),
        vocab_size=reader.whole("vocab", MAX_LENGTH),
        weights_bytes=reader.gib("weights_gb") or 0,
    )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
