"""The figures the gates require. A change of any of them is a new `RULES_VERSION`."""

from __future__ import annotations

RULES_VERSION = 2
EVIDENCE_SCHEMA = "evidence/1"
CERTIFICATE_SCHEMA = 1
PRODUCER_GATE = "abc_union"
"""The tag of a certificate made from arms A, B and the union of C's passes."""
ENDPOINT_GATE = "ac_union"
"""The same of a server of someone else, where there is no arm B."""

MIN_OK_FRACTION = 0.8
"""F2: share of the compared trials that must be real answers, in A and in C."""
MIN_COVERAGE_FRACTION = 0.8
"""F3: share of the ids that need a proved co-batched C trial."""
MIN_COVERED_IDS = 2
MIN_SHARED_DECODES = 16
"""F3: so many proved shared decodes suffice, or half of the trial's decodes."""
MIN_GAUGE_POLLS = 2
"""F3 by a scheduler's gauge: so many polls must show the trial beside another, and half of those
that fall inside it."""
MAX_GAUGE_TIME = 0.8
"""By a gauge alone a pass must take at most this share of what its requests took one at a time in
arm A: a server that computes one after the other, whatever it calls them, takes all of it."""
MIN_DISTINCT_BODIES = 8
MIN_COBATCHED_TOKENS = 64
MIN_DIFFERENT_PASSES = 2
LENGTH_BOUNDARIES = (64, 256, 512)
"""Tokens of a sequence at which llama.cpp's CPU kernels change: a tile of query rows, a padding
step of the KV cache, split-KV decoding. The micro-batch is added to them."""
MAX_SLOTS = 256
"""llama.cpp's limit on sequences in one context (LLAMA_MAX_SEQ)."""
ASSUMED_UBATCH = 512
"""llama.cpp's default micro-batch, which stands in the cell of a server that does not tell it."""
CTX_STEP = 256
"""llama-server pads a slot's context to a multiple of this."""
EXACT_COUNTER_LIMIT = 1_000_000
"""`/metrics` prints six significant digits: counters are exact below this."""
DEFAULT_CONFIRM_LIMIT = 64
CONFIDENCE = 0.95

INVARIANT_FIELDS = (
    "score",
    "passed",
    "extracted_answer",
    "expected_answer",
    "prompt_tokens_measured",
    "failure_mode",
)
"""Compared by F0, exactly and by type."""

VOLATILE_FIELDS = ("lane", "wave", "dispatch_ts", "complete_ts")
"""Expected to differ between arms."""

DIAGNOSTIC_FIELDS = (
    "arm",
    "pass_index",
    "item",
    "occurrence",
    "item_id",
    "request_sha256",
    "perturbed",
    "failure",
    "text",
    "finish_reason",
    "reasoning",
    "tool_calls",
    "token_ids",
    "logprobs",
    "top_ids",
    "top_logprobs",
    "completion_tokens",
    "cache_n",
    "draft_n",
    "truncated",
)
"""Everything else a trial records: read by the other gates, or shown."""
