"""The metrics of the engines that have them: their names, and reading the Prometheus text.

Names and meanings, all read at `/metrics`:

- llama.cpp (`tools/server/server-context.cpp`): `n_decode_total` counts `llama_decode` calls,
  `requests_processing` busy slots; six significant digits.
- vLLM (docs.vllm.ai, production metrics; `v1/metrics/loggers.py` of 0.32): the histogram
  `iteration_tokens_total` is observed once for each engine step with an output, so its `_count`
  counts forward passes; `prefix_cache_hits` counts tokens.
- SGLang (docs.sglang.ai, production metrics): counters of tokens and gauges of requests, no count
  of steps. The gauges move every `--decode-log-interval` steps.
- TGI (huggingface.co/docs/text-generation-inference, metrics): sums of histograms over finished
  requests, and the size of the batch that is being computed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from batch_invariance.invariance_diff.endpoint import Engine, Offered
from batch_invariance.invariance_diff.records import Counters
from batch_invariance.invariance_diff.rules import EXACT_COUNTER_LIMIT

EXACT_FLOAT = 1 << 53


@dataclass(frozen=True, slots=True)
class MetricNames:
    """What one engine calls its metrics; `waiting` is the gauge of queued requests, `also_cached`
    counts further prompt tokens that came from a cache, `exact` is the value below which its
    counters are printed exactly."""

    prefix: str
    offered: Offered
    waiting: str | None
    also_cached: str | None = None
    exact: int = EXACT_FLOAT


METRICS = {
    Engine.LLAMA_CPP: MetricNames(
        "llamacpp:",
        Offered(
            steps="llamacpp:n_decode_total",
            generated="llamacpp:tokens_predicted_total",
            prompt="llamacpp:prompt_tokens_total",
            cached=None,
            running="llamacpp:requests_processing",
        ),
        "llamacpp:requests_deferred",
        exact=EXACT_COUNTER_LIMIT,
    ),
    Engine.VLLM: MetricNames(
        "vllm:",
        Offered(
            steps="vllm:iteration_tokens_total_count",
            generated="vllm:generation_tokens_total",
            prompt="vllm:prompt_tokens_total",
            cached="vllm:prefix_cache_hits_total",
            running="vllm:num_requests_running",
        ),
        "vllm:num_requests_waiting",
        "vllm:external_prefix_cache_hits_total",
    ),
    Engine.SGLANG: MetricNames(
        "sglang:",
        Offered(
            steps=None,
            generated="sglang:generation_tokens_total",
            prompt="sglang:prompt_tokens_total",
            cached="sglang:cached_tokens_total",
            running="sglang:num_running_reqs",
        ),
        "sglang:num_queue_reqs",
    ),
    Engine.TGI: MetricNames(
        "tgi_",
        Offered(
            steps=None,
            generated="tgi_request_generated_tokens_sum",
            prompt="tgi_request_input_length_sum",
            cached=None,
            running="tgi_batch_current_size",
        ),
        "tgi_queue_size",
    ),
}


RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
"""Labels of processes that work on the same batch and each report it."""
SHARES = "priority"
"""A label whose series split up the one where it is empty (SGLang)."""
MOST = 1e300
"""So many of these as a server can list have a sum."""
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_samples(body: bytes, prefix: str) -> dict[str, float]:
    """Metric -> value, of the metrics that begin with `prefix`.

    Added up over engines, models and replicas: steps of two engines are two passes, so their sum is
    what the bound on sharing needs. Ranks of one engine report the same batch: the largest counts.
    """
    return {name: math.fsum(series.values()) for name, series in _series_of(body, prefix).items()}


Series = dict[frozenset[tuple[str, str]], float]
"""Labels, less those of ranks -> value."""


def _series_of(body: bytes, prefix: str) -> dict[str, Series]:
    """Metric -> its series, one for each engine, model or replica."""
    groups: dict[str, Series] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if not line.startswith(prefix):
            continue
        name, labelled, rest = line.partition("{")
        if labelled:
            inner, _, text = rest.rpartition("}")
            labels = dict(LABEL.findall(inner))
        else:
            name, _, text = line.partition(" ")
            labels = {}
        try:
            value = float(text.split()[0])
        except (ValueError, IndexError):
            continue
        if labels.get(SHARES):
            continue
        if not abs(value) <= MOST:
            # Infinities of both signs have no sum; of this metric nothing is known.
            value = math.nan
        key = frozenset((k, v) for k, v in labels.items() if k not in RANKS)
        series = groups.setdefault(name, {})
        series[key] = max(value, series.get(key, value))
    return groups


def engine_of(body: bytes) -> Engine | None:
    """Whose metrics these are; None for nobody's that is known."""
    for engine, names in METRICS.items():
        if read_samples(body, names.prefix):
            return engine
    return None


def offered_by(engine: Engine, body: bytes) -> Offered:
    """Those of the engine's metrics that are really there."""
    names = METRICS.get(engine)
    if names is None:
        return Offered(None, None, None, None, None)
    found, full = read_samples(body, names.prefix), names.offered

    def present(name: str | None) -> str | None:
        return name if name in found else None

    return Offered(
        present(full.steps),
        present(full.generated),
        present(full.prompt),
        present(full.cached),
        present(full.running),
    )


def counters_from(engine: Engine, body: bytes) -> Counters:
    """The engine's counters now; None for one that is absent or no longer exact."""
    names = METRICS[engine]
    found = read_samples(body, names.prefix)

    def exact(name: str | None) -> int | None:
        value = found.get(name) if name is not None else None
        if value is None or not 0 <= value < names.exact or value != int(value):
            return None
        return int(value)

    full = names.offered
    cached, more = exact(full.cached), exact(names.also_cached)
    return Counters(
        exact(full.steps),
        exact(full.generated),
        exact(full.prompt),
        None if cached is None else cached + (more or 0),
    )


def running_from(engine: Engine, body: bytes) -> tuple[int, int] | None:
    """(running, waiting) by the engine's gauges, waiting -1 where it is not told.

    The most that one engine or replica is running: requests on two of them share no batch, however
    many they are together.
    """
    names = METRICS[engine]
    found = _series_of(body, names.prefix)
    running = max(found.get(names.offered.running or "", {}).values(), default=-1.0)
    if not 0 <= running < EXACT_FLOAT:
        return None
    waiting = math.fsum(found.get(names.waiting or "", {}).values() or (-1.0,))
    return int(running), int(waiting) if 0 <= waiting < EXACT_FLOAT else -1
