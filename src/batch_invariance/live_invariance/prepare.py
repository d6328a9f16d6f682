"""Everything that is checked and known before a server starts: request in, header and plan out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from batch_invariance import __version__
from batch_invariance.errors import UsageError
from batch_invariance.formats.gguf import GgufHeader, model_shape
from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.budget import Footprint, KvType, ServerSettings, project
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.plan import plan_listed, plan_passes, shortfalls
from batch_invariance.invariance_diff.records import (
    Cell,
    Header,
    ModelFacts,
    Observer,
    PassPlan,
    Plan,
    Subject,
    WorkSetRecord,
)
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule import PassSchedule
from batch_invariance.invariance_diff.schedule_file import check_matches
from batch_invariance.invariance_diff.ubatch import Layout
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance.digests import ModelDigestCache, file_sha256
from batch_invariance.live_invariance.flags import (
    FLASH_ATTENTION_OFF,
    UserFlags,
    canonical,
    check_user_flags,
    parse_known_flags,
)
from batch_invariance.live_invariance.host import host_facts
from batch_invariance.live_invariance.launch import (
    LaunchSpec,
    engine_environment,
    scrub_environment,
    validate_ctx,
)
from batch_invariance.live_invariance.model_file import read_model
from batch_invariance.scorer_api import Scorer, describe_scorer

ASK_TIMEOUT_S = 30.0
MAX_PASSES = 10_000
RANDOM_SEED = 4294967295
"""llama-server draws a seed of its own for this one, as it does for -1."""


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """The passes of arm C out of a file, and the file's name."""

    name: str
    passes: tuple[PassSchedule, ...]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The part of a cell that is not the server's: N, passes of C, sampling, seeds, F4. `schedule`
    replaces the built-in passes."""

    parallel: int
    passes: int
    sampling: Sampling
    schedule_seed: int
    schedule: ListedSchedule | None = None
    logit_drift: str | None = None
    confirm_limit: int = rules.DEFAULT_CONFIRM_LIMIT


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The server and the model: paths, context per slot, the user's flags, the model's alias."""

    server_bin: Path
    model: Path
    ctx: int
    flags: UserFlags = field(default_factory=UserFlags)
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class ServerKnowledge:
    """What the files tell before a start: the version text and flags of the build, the model's
    facts, and the projected memory of a server with N slots."""

    version: str | None
    known_flags: frozenset[str] | None
    server_sha256: str | None
    model: ModelFacts
    footprint: Footprint


def check_settings(settings: RunSettings) -> None:
    """Raises UsageError for figures that no run can have."""
    if not 1 <= settings.parallel <= rules.MAX_SLOTS:
        raise UsageError(f"--parallel {settings.parallel}: give 1 to {rules.MAX_SLOTS}")
    if not 1 <= settings.passes <= MAX_PASSES:
        raise UsageError(f"--passes {settings.passes}: give 1 to {MAX_PASSES}")
    if not 0 <= settings.sampling.seed < RANDOM_SEED:
        raise UsageError(f"--seed {settings.sampling.seed}: give 0 to {RANDOM_SEED - 1}")
    if settings.sampling.max_tokens < 1:
        raise UsageError(f"--max-tokens {settings.sampling.max_tokens}: give 1 or more")
    if settings.sampling.top_logprobs < 1:
        raise UsageError(f"--top-logprobs {settings.sampling.top_logprobs}: give 1 or more")


def find_server(name: str) -> Path:
    """The server executable: a path, or a command on PATH. Raises UsageError when it is neither."""
    found = shutil.which(name)
    if found is None:
        hint = (
            "it is not executable" if os.path.exists(name) else "there is no such file or command"
        )
        raise UsageError(f"--server-bin {name}: {hint}; give the path of a llama-server")
    return Path(os.path.abspath(found))


def know_server(choice: ServerChoice, parallel: int) -> ServerKnowledge:
    """Reads the model's header and asks the build for its version and flags.

    Raises UsageError for flags or figures that cannot be, GgufError for a file that is no model.
    """
    validate_ctx(choice.ctx)
    check_user_flags(choice.flags.flags)
    for flag, size in (("-b", choice.flags.batch_size), ("-ub", choice.flags.ubatch_size)):
        if size < parallel:
            raise UsageError(f"{flag} {size}: a batch of {parallel} requests cannot form; raise it")
    header, size, projected = _know_model(choice, parallel)
    digest = ModelDigestCache().digest(choice.model)
    help_text = _ask(choice.server_bin, "--help")
    known = parse_known_flags(help_text) if help_text else frozenset()
    return ServerKnowledge(
        version=_ask(choice.server_bin, "--version"),
        known_flags=known or None,
        server_sha256=file_sha256(choice.server_bin),
        model=ModelFacts(
            file=choice.model.name,
            size=size,
            sha256=digest.sha256,
            sha256_from=digest.sha256_from,
            architecture=header.architecture,
            name=header.name,
            file_type=header.file_type_name,
            block_count=header.block_count,
            context_length=header.context_length,
            expert_count=header.expert_count,
            expert_used_count=header.expert_used_count,
        ),
        footprint=projected,
    )


def _know_model(choice: ServerChoice, parallel: int) -> tuple[GgufHeader, int, Footprint]:
    headers, size = read_model(choice.model)
    flags = choice.flags
    settings = ServerSettings(
        k_type=KvType.parse(flags.cache_type_k),
        v_type=KvType.parse(flags.cache_type_v),
        flash_attention=flags.flash_attn not in FLASH_ATTENTION_OFF,
        batch_tokens=flags.batch_size,
        ubatch_tokens=flags.ubatch_size,
        kv_unified=flags.kv_unified,
        swa_full="--swa-full" in (canonical(flag) for flag in flags.flags),
    )
    shape = model_shape(headers, f"model {choice.model.name}")
    return headers[0], size, project(shape, choice.ctx, parallel, settings)


def footprint(choice: ServerChoice, parallel: int) -> Footprint:
    """The projected memory of this server with `parallel` slots. Raises as `know_server` does."""
    return _know_model(choice, parallel)[2]


def _ask(server_bin: Path, question: str) -> str | None:
    """What the build prints for `--version` (on stderr) or `--help` (on stdout)."""
    try:
        with subprocess.Popen(
            [server_bin, question],
            env=scrub_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as asked:
            try:
                out, err = asked.communicate(timeout=ASK_TIMEOUT_S)
            except BaseException:
                # A wrapper that ignores the question may have started a server by now.
                os.killpg(asked.pid, signal.SIGKILL)
                raise
    except OSError as error:
        raise UsageError(f"--server-bin {server_bin} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"--server-bin {server_bin} did not answer {question} within {ASK_TIMEOUT_S:g} s; "
            "give the path of a llama-server"
        ) from error
    text = (out + err).decode("utf-8", "replace").strip()
    return text or None


def observer_now() -> Observer:
    """This tool on this machine."""
    host = host_facts()
    return Observer(
        tool=f"batch-invariance {__version__}",
        python=host.python_version,
        system=host.system,
        machine=host.machine,
        processor=host.cpu_model,
        cpu_count=host.cpu_count,
    )


def build_header(
    source: Source,
    cell: Cell,
    subject: Subject,
    settings: RunSettings,
    workset: WorkSet,
    scorer: Scorer,
) -> Header:
    """The evidence's first line. Raises ScorerError for a scorer that cannot be named."""
    return Header(
        schema=rules.EVIDENCE_SCHEMA,
        rules_version=rules.RULES_VERSION,
        source=source,
        ts_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        cell=cell,
        plan=Plan(
            sampling=settings.sampling,
            passes=_plans(settings, len(workset.items)),
            schedule_seed=settings.schedule_seed,
            confirm_limit=settings.confirm_limit,
            logit_drift=settings.logit_drift,
            schedule=None if settings.schedule is None else settings.schedule.name,
            listed=() if settings.schedule is None else settings.schedule.passes,
        ),
        subject=subject,
        observer=observer_now(),
        workset=WorkSetRecord(workset.name, workset.sha256, workset.items),
        scorer=describe_scorer(scorer),
    )


def _plans(settings: RunSettings, n_items: int) -> tuple[PassPlan, ...]:
    n, listed = settings.parallel, settings.schedule
    if listed is None:
        return plan_passes(n_items, n, settings.passes, settings.schedule_seed)
    check_matches(listed.passes, n_items, n, listed.name)
    return plan_listed(n_items, n, listed.passes)


def live_header(
    source: Source,
    choice: ServerChoice,
    known: ServerKnowledge,
    settings: RunSettings,
    workset: WorkSet,
    scorer: Scorer,
) -> Header:
    """The header of a run against a llama-server that this run launches."""
    flags = choice.flags
    cell = Cell(
        model=model_name(choice),
        ctx=choice.ctx,
        dispatch_n=settings.parallel,
        kv_type_k=flags.cache_type_k,
        kv_type_v=flags.cache_type_v,
        kv_unified=layout_is_unified(flags, known),
        n_ubatch=flags.ubatch_size,
        server_flags=flags.flags,
        environment=engine_environment(os.environ),
    )
    subject = Subject(choice.server_bin.name, known.server_sha256, known.version, known.model)
    return build_header(source, cell, subject, settings, workset, scorer)


def layout_is_unified(flags: UserFlags, known: ServerKnowledge) -> bool | None:
    """Unified KV or not; None for a build that has no flag for it."""
    if flags.states_kv_unified or known.known_flags is None:
        return flags.kv_unified
    return False if "--no-kv-unified" in known.known_flags else None


def batch_layout(choice: ServerChoice, known: ServerKnowledge) -> Layout:
    """How this server cuts a forward pass into micro-batches; a layout that is not known is taken
    for a split one, which proves less."""
    return Layout(layout_is_unified(choice.flags, known) is True, choice.flags.ubatch_size)


def launch_spec(choice: ServerChoice, known: ServerKnowledge, parallel: int) -> LaunchSpec:
    """The command line's ingredients; port and key file are chosen at the launch."""
    return LaunchSpec(
        server_bin=choice.server_bin,
        model=choice.model,
        ctx=choice.ctx,
        parallel=parallel,
        port=0,
        api_key_file=Path("KEYFILE"),
        alias=model_name(choice),
        user_flags=choice.flags,
        known_flags=known.known_flags,
    )


def model_name(choice: ServerChoice) -> str:
    """The cell's model: the alias that was given, or the file's name without `.gguf`."""
    return choice.alias or choice.model.name.removesuffix(".gguf")


def plan_shortfalls(workset: WorkSet, settings: RunSettings) -> tuple[str, ...]:
    """Why this run can never be GREEN; see `invariance_diff.plan.shortfalls`."""
    return shortfalls(workset.items, settings.parallel, settings.passes, settings.sampling)
