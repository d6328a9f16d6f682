"""The one request body of an item, byte-identical in every arm but for `id_slot`.

What a request omits, llama-server fills from its own flags and defaults, so the body states every
sampling parameter: a server started with `--temp 1.5` still decodes greedily.
"""

from __future__ import annotations

from dataclasses import dataclass

from batch_invariance.invariance_diff.digest import canonical_json, sha256_hex
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


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request of a run states alike.

    `seed` is the request seed (of no effect at temperature 0, sent all the same); `max_tokens`
    the run's limit where an item has none of its own; `top_logprobs` how many alternatives are
    recorded at each position.
    """

    seed: int
    max_tokens: int
    top_logprobs: int

    def to_json(self) -> dict[str, object]:
        """The parameters of the body that do not depend on the item."""
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
    """A request body without `id_slot`, and its digest."""

    data: bytes
    sha256: str

    def for_slot(self, slot: int) -> bytes:
        """The bytes to send: the same body with `id_slot` appended."""
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
    return Body(data, sha256_hex(data))


def ban_token(token_id: int) -> dict[str, object]:
    """The positive control's override: `token_id` may not be generated."""
    return {"logit_bias": [[token_id, False]]}
