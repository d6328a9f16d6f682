"""What is known of a server that someone else runs: its engine, what it offers, how to ask it.

Everything here was seen on the wire before the run: capabilities are probed, never assumed. What a
server does not offer narrows what its certificate may claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Engine(str, Enum):
    """Which program serves, told from the names of its metrics and routes; `OTHER`: not told."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    OLLAMA = "ollama"
    OTHER = "other"


class TokenNames(str, Enum):
    """How the answers name their tokens.

    `IDS`: by id. `SPELLING`: by their bytes alone; 31 bits of the SHA-256 of those stand for the
    id, so two tokens of one spelling are the same. `NONE`: not at all, texts are compared.
    """

    IDS = "ids"
    SPELLING = "spelling"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a request to the server is spelt.

    `model` goes out in each; `stated` names the parameters that the server accepts, which every
    body states with the one value that `Sampling` gives them; `pins_slots`: a request names its
    slot (llama.cpp); `tokens`: how answers name their tokens.
    """

    model: str
    stated: tuple[str, ...]
    pins_slots: bool
    tokens: TokenNames


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the probes saw.

    `logprobs` and `alternatives` came back with the answer, `usage` counted its tokens,
    `reports_cache` says how much of the prompt came from a cache. `seed` and `cache_prompt` were
    accepted, which is not to say heeded. `logit_bias` was heeded: a ban changed the answer.
    `refused` names the parameters that the server would not take.
    """

    logprobs: bool
    alternatives: bool
    tokens: TokenNames
    usage: bool
    reports_cache: bool
    seed: bool
    cache_prompt: bool
    logit_bias: bool
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """The server's own metrics by name, None where it has none: the counter of forward passes,
    of generated tokens, of prompt tokens, of prompt tokens read from a cache, and the gauge of
    requests that its scheduler is running."""

    steps: str | None
    generated: str | None
    prompt: str | None
    cached: str | None
    running: str | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The subject of an endpoint run. `url` holds no credentials; `said` is what the server says
    of itself, by the place where it says so; `claim` is the invariance that its operator claims,
    as given; `n_probes` requests were sent to find out."""

    url: str
    engine: Engine
    said: Mapping[str, str]
    capabilities: Capabilities
    offered: Offered
    claim: str | None
    n_probes: int

    @property
    def any_lane_shares(self) -> bool:
        """Whether requests in one forward pass are in the same matrix products, whichever they
        are. llama.cpp cuts a pass into runs of neighbouring slots unless its KV cache is unified,
        which it does not say."""
        return self.engine is not Engine.LLAMA_CPP


COUNTERS_OF = {
    Engine.LLAMA_CPP: "start llama-server with --metrics",
    Engine.VLLM: "start vLLM without --disable-log-stats and let /metrics through",
    Engine.SGLANG: "start SGLang with --enable-metrics",
    Engine.TGI: "let /metrics of TGI through",
}
NO_CACHE_OF = {
    Engine.LLAMA_CPP: "start llama-server with --metrics and send cache_prompt=false through",
    Engine.VLLM: "start vLLM with --no-enable-prefix-caching, and --enable-prompt-tokens-details",
    Engine.SGLANG: "start SGLang with --disable-radix-cache and --enable-cache-report",
}
ANY_COUNTERS = (
    "counters of the kind that llama.cpp (--metrics), vLLM, SGLang (--enable-metrics) or TGI have "
    "at /metrics"
)


def wants(endpoint: Endpoint) -> tuple[str, ...]:
    """What the server would have to offer for everything to be provable, one line each."""
    can, has, found = endpoint.capabilities, endpoint.offered, []
    counters = COUNTERS_OF.get(endpoint.engine, ANY_COUNTERS)
    if has.steps is None and has.running is None:
        found.append(f"a witness of batches: {counters}")
    if has.generated is None:
        found.append(f"a count of generated tokens, to show other traffic: {counters}")
    if not can.reports_cache and has.cached is None:
        hint = NO_CACHE_OF.get(endpoint.engine, "cached_tokens in usage.prompt_tokens_details")
        found.append(f"word of its prompt cache: {hint}")
    if can.tokens is TokenNames.NONE:
        found.append("logprobs in its answers, which name the tokens")
    if not can.usage:
        found.append("usage in its answers, which counts the tokens")
    return tuple(found)
