"""The one request body of an item, byte-identical in every arm but for `id_slot`.

What a request omits, llama-server fills from its own flags and defaults, so the body states every
sampling parameter: a server started with `--temp 1.5` still decodes greedily.
"""

from __future__ import annotations

from dataclasses import dataclass

from batch_invariance.invariance_diff.digest import canonical_json, sha256_hex
from batch_invariance.invariance_diff.endpoint import Dialect
from batch_invariance.invariance_diff.model import Item

SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
BY_ID = "return_tokens_as_token_ids"
OF_OTHERS: dict[str, object] = {"repetition_penalty": 1.0, BY_ID: True}
"""Parameters of other engines than llama.cpp, with the value that every body states."""
NO_CHANCE = -100
"""The bias of a ban in the OpenAI form: the least that the API knows."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request of a run states alike.

    `seed` is the request seed (of no effect at temperature 0, sent all the same); `max_tokens`
    the run's limit where an item has none of its own; `top_logprobs` how many alternatives are
    recorded at each position. `dialect` is None for a llama-server of our own, which takes them
    all.
    """

    seed: int
    max_tokens: int
    top_logprobs: int
    dialect: Dialect | None = None

    def to_json(self) -> dict[str, object]:
        """The parameters of the body that do not depend on the item."""
        own = self._all()
        if self.dialect is None:
            return own
        known = {**own, **OF_OTHERS}
        stated = {name: known[name] for name in self.dialect.stated if name in known}
        return {"model": self.dialect.model, **stated}

    def _all(self) -> dict[str, object]:
        return {
            "temperature": 0.0,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
            "top_k": 1,
            "top_p": 1.0,
            "min_p": 0.0,
            "typical_p": 1.0,
            "top_n_sigma": -1.0,
            "xtc_probability": 0.0,
            "xtc_threshold": 0.1,
            "repeat_last_n": 0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "dry_multiplier": 0.0,
            "mirostat": 0,
            "samplers": list(SAMPLERS),
            "seed": self.seed,
            "ignore_eos": False,
            "logit_bias": [],
            "n": 1,
            "stream": False,
            "cache_prompt": False,
            "post_sampling_probs": False,
            "logprobs": True,
            "top_logprobs": self.top_logprobs,
        }


@dataclass(frozen=True, slots=True)
class Body:
    """A request body without `id_slot`, and its digest. `pinned`: it names its slot when sent."""

    data: bytes
    sha256: str
    pinned: bool = True

    def for_slot(self, slot: int) -> bytes:
        """The bytes to send: the same body, with `id_slot` appended where it is pinned."""
        if not self.pinned:
            return self.data
        return self.data[:-1] + b',"id_slot":%d}' % slot


def max_tokens_of(item: Item, sampling: Sampling) -> int:
    """The token limit of one item."""
    return item.max_tokens if item.max_tokens is not None else sampling.max_tokens


def build_body(item: Item, sampling: Sampling, overrides: dict[str, object] | None = None) -> Body:
    """The body for `item`; `overrides` replaces parameters and serves control and warm-up alone."""
    payload: dict[str, object] = {
        "messages": [{"role": m.role, "content": m.content} for m in item.messages],
        "max_tokens": max_tokens_of(item, sampling),
        **sampling.to_json(),
        **(overrides or {}),
    }
    data = canonical_json(payload)
    pinned = sampling.dialect is None or sampling.dialect.pins_slots
    return Body(data, sha256_hex(data), pinned)


def ban_token(token_id: int, dialect: Dialect | None = None) -> dict[str, object]:
    """The positive control's override: `token_id` may not be generated."""
    if dialect is not None:
        return {"logit_bias": {str(token_id): NO_CHANCE}}
    return {"logit_bias": [[token_id, False]]}
