"""The server's flags: which are the driver's, which are the user's, which a build knows.

Flags are compared in a canonical spelling: what follows `=` is cut off, and in long flags `_` is
`-`, because llama-server reads `--ctx_size` as `--ctx-size`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batch_invariance.errors import UsageError

_MODEL = "the model is given by --model alone"
_DRAFT = "speculation breaks the counting of shared decodes, so the driver keeps it off"
_LOG = "the driver owns the log, which it reads as a witness"
_CACHE = "the driver keeps prompt caches off, so that every trial starts cold"
_EXITS = "it makes the server print something and exit"
_KEYS = "the driver owns the keys of its server"

_OWNERS: tuple[tuple[str, str], ...] = (
    (
        "-m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -hfv -hfrv --hf-repo-v"
        " -hffv --hf-file-v -hft --hf-token -dr --docker-repo --models-dir --models-preset"
        " --models-max --models-autoload --no-models-autoload -mv --model-vocoder",
        _MODEL,
    ),
    ("-a --alias", "the driver names the model"),
    ("-c --ctx-size", "the context is given by --ctx (per slot)"),
    ("-np --parallel", "the number of slots is given by --parallel"),
    ("--host --port --reuse-port --api-prefix", "the driver chooses the server's address"),
    ("--api-key --api-key-file --ssl-key-file --ssl-cert-file", _KEYS),
    (
        "--metrics --no-metrics --slots --no-slots --props --no-props",
        "the driver owns the endpoints it measures with",
    ),
    (
        "-cram --cache-ram --cache-prompt --no-cache-prompt --cache-reuse --slot-save-path"
        " --prompt-cache --prompt-cache-all --prompt-cache-ro",
        _CACHE,
    ),
    ("-v --verbose -lv --verbosity", _LOG),
    (
        "-md --model-draft -hfd -hfrd -td -tbd -Cd -Crd -Cbd -otd -cmoed -ncmoed -devd -ngld -cd"
        " -ctkd -ctvd -lcs -lcd",
        _DRAFT,
    ),
    (
        "--embedding --embeddings --rerank --reranking",
        "the cell is about completions",
    ),
    ("--sleep-idle-seconds", "a server that sleeps would leave the cell"),
    (
        "-h --help --usage --version --license -cl --cache-list --completion-bash --list-devices",
        _EXITS,
    ),
)
OWNED_FLAGS: Mapping[str, str] = {flag: owner for flags, owner in _OWNERS for flag in flags.split()}
"""Every flag that the user may not pass, in canonical spelling, with the reason."""

# Families whose members come and go between builds.
_OWNED_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"--log-.*|--no-log-.*"), _LOG),
    (re.compile(r"--ssl-.*|--api-key.*"), _KEYS),
    (re.compile(r"--(no-)?spec-.*|--draft(-.*)?|--.*-draft(-.*)?|--lookup-.*"), _DRAFT),
    (re.compile(r"--hf-.*|--models-.*|--(fim|embd|gpt-oss|vision)-.*(default|spec)"), _MODEL),
    (re.compile(r"--.*-default"), _MODEL),
)

_SWITCH_NAMES = (
    "-kvu --kv-unified -no-kvu --no-kv-unified -cb --cont-batching -nocb --no-cont-batching"
    " --swa-full --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo --no-kv-offload"
    " --repack -nr --no-repack --no-host --mlock --mmap --no-mmap -dio --direct-io -ndio"
    " --no-direct-io -cmoe --cpu-moe --check-tensors --op-offload --no-op-offload --offline"
    " --ignore-eos -bs --backend-sampling --cache-idle-slots --no-cache-idle-slots"
    " --context-shift --no-context-shift -sp --special --warmup --no-warmup --spm-infill"
    " --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload"
    " --cors-credentials --no-cors-credentials --ui-mcp-proxy --no-ui-mcp-proxy -ag --agent"
    " -no-ag --no-agent --ui --webui --no-ui --no-webui --jinja --no-jinja --reasoning-preserve"
    " --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant"
    " --no-prefill-assistant --lora-init-without-apply"
    " --webui-mcp-proxy --no-webui-mcp-proxy --tts-use-guide-tokens"
)
_SWITCHES = frozenset(_SWITCH_NAMES.split())
_TWO_VALUES = frozenset({"--control-vector-layer-range"})
_KV_UNIFIED = ("-kvu", "--kv-unified")
KV_LAYOUT = (*_KV_UNIFIED, "-no-kvu", "--no-kv-unified")
"""Every spelling that decides whether the slots share one KV buffer."""
FLASH_ATTENTION = ("-fa", "--flash-attn")
FLASH_ATTENTION_OFF = ("off", "disabled", "false", "0")
"""What `--flash-attn` takes for off (`is_falsey` in common/arg.cpp, b11434)."""
UBATCH_SIZE = ("-ub", "--ubatch-size")


def canonical(token: str) -> str:
    """The canonical spelling of the flag in `token`: without `=value`, with `-` for `_`."""
    flag = token.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def is_flag(token: str) -> bool:
    """Whether `token` is a flag rather than a value; `-1` and a lone `-` are values."""
    return re.match(r"-{1,2}[A-Za-z]", token) is not None


def parse_known_flags(help_text: str) -> frozenset[str]:
    """Every spelling that `llama-server --help` lists.

    `--log-colors` counts only where it takes a value: older builds know it as a switch.
    """
    known: set[str] = set()
    for line in help_text.splitlines():
        if not line.startswith("-"):
            continue
        head = re.split(r"\s{2,}(?=[^\s-])", line.rstrip())[0]
        listed = re.match(r"(-{1,2}[A-Za-z][\w.-]*(,\s+|$|\s))+", head + " ")
        names = re.findall(r"-{1,2}[A-Za-z][\w.-]*", listed.group() if listed else "")
        if names == ["--log-colors"] and head.strip() == "--log-colors":
            continue
        known.update(names)
    return frozenset(known)


def _owner(flag: str) -> str | None:
    if flag in OWNED_FLAGS:
        return OWNED_FLAGS[flag]
    return next((why for pattern, why in _OWNED_PATTERNS if pattern.fullmatch(flag)), None)


def check_user_flags(flags: Sequence[str]) -> None:
    """Raise `UsageError` listing every flag after `--` that is the driver's, and every stray word.

    Values are told from stray words by the flag before them; a flag that this list does not know
    is taken to have one value at most.
    """
    refused: list[str] = []
    values_left = 0
    for token in flags:
        if not is_flag(token):
            if values_left == 0:
                refused.append(f"{token!r} (belongs to no flag)")
            values_left = max(0, values_left - 1)
            continue
        flag = canonical(token)
        owner = _owner(flag)
        if owner is not None:
            refused.append(f"{flag} ({owner})")
        values_left = 0 if "=" in token or flag in _SWITCHES else 1
        if flag in _TWO_VALUES:
            values_left = 2
    if refused:
        raise UsageError(
            f"these arguments after -- are not the user's: {', '.join(refused)}; leave them out"
        )


@dataclass(frozen=True, slots=True)
class UserFlags:
    """The flags after `--`, with look-ups that know every spelling and `--x=y`; the last wins."""

    flags: tuple[str, ...] = ()

    def value(self, *spellings: str) -> str | None:
        """The value of the last flag in `spellings`, or None when none was given."""
        found: str | None = None
        for index, token in enumerate(self.flags):
            if is_flag(token) and canonical(token) in spellings:
                _, equals, attached = token.partition("=")
                following = self.flags[index + 1 : index + 2]
                found = attached if equals else (following[0] if following else found)
        return found

    def _number(self, default: int, *spellings: str) -> int:
        text = self.value(*spellings)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{spellings[-1]} needs a whole number, not {text!r}") from None

    @property
    def cache_type_k(self) -> str:
        """The KV cache's type for keys; f16 by default."""
        return self.value("-ctk", "--cache-type-k") or "f16"

    @property
    def cache_type_v(self) -> str:
        """The KV cache's type for values; f16 by default."""
        return self.value("-ctv", "--cache-type-v") or "f16"

    @property
    def batch_size(self) -> int:
        """Tokens in a logical batch; 2048 by default."""
        return self._number(2048, "-b", "--batch-size")

    @property
    def ubatch_size(self) -> int:
        """Tokens in a physical batch; 512 by default."""
        return self._number(512, *UBATCH_SIZE)

    @property
    def flash_attn(self) -> str:
        """`on`, `off` or `auto` as given; `auto` by default, `on` for the bare old switch."""
        given = self.value(*FLASH_ATTENTION)
        if given is not None and not is_flag(given):
            return given
        bare = any(canonical(token) in FLASH_ATTENTION for token in self.flags)
        return "on" if bare else "auto"

    @property
    def states_kv_unified(self) -> bool:
        """Whether the user decided about unified KV at all."""
        return any(canonical(token) in KV_LAYOUT for token in self.flags)

    @property
    def kv_unified(self) -> bool:
        """Whether the slots share one KV buffer; off by default."""
        unified = False
        for token in self.flags:
            if canonical(token) in KV_LAYOUT:
                unified = canonical(token) in _KV_UNIFIED
        return unified
