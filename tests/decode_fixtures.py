"""An ideal run together with what the server's log would say of its forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from batch_invariance.invariance_diff.model import Completion, Trial
from batch_invariance.invariance_diff.records import (
    Counters,
    DecodeRuns,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    WaveEnd,
)
from core_fixtures import Records

Runs = tuple[tuple[int, ...], ...]


@dataclass
class Engine:
    """Every lane with work takes part in every forward pass; a prompt takes one."""

    decodes: int = 0
    task: int = 100
    runs: list[tuple[int, ...]] = field(default_factory=list)

    def work(self, lanes: dict[int, list[Trial]]) -> None:
        waiting = {lane: list(trials) for lane, trials in sorted(lanes.items())}
        running: dict[int, tuple[int, int, int]] = {}
        while any(waiting.values()) or running:
            for lane, trials in waiting.items():
                if lane not in running and trials:
                    result = trials.pop(0).result
                    assert isinstance(result, Completion)
                    assert result.completion_tokens is not None
                    assert result.prompt_tokens is not None
                    self.task += 1
                    running[lane] = (self.task, result.prompt_tokens, result.completion_tokens)
            step = [1]
            for lane in sorted(running, key=lambda n: (running[n][1] > 0, n)):
                task, prompt, left = running[lane]
                step += [lane, task, prompt]
                running[lane] = (task, 0, left - 1)
                if left == 1:
                    del running[lane]
            self.decodes += 1
            self.runs.append(tuple(step))


def with_log(records: Records, change: Callable[[PassStart, Runs], Runs] | None = None) -> Records:
    """The records with `DecodeRuns` in every pass and counters that fit them.

    `change` may alter what the log says of a pass after the counters are set.
    """
    out: list[Record] = []
    engine = Engine()
    start: PassStart | None = None
    trials: list[Trial] = []
    for record in records:
        if isinstance(record, LifetimeStart):
            engine = Engine()
        elif isinstance(record, PassStart):
            start = record = replace(record, counters=_counted(record.counters, engine))
            engine.runs = []
        elif isinstance(record, Trial):
            trials.append(record)
        elif isinstance(record, WaveEnd):
            engine.work({trial.lane: [trial] for trial in trials})
            trials = []
            record = replace(record, counters=_counted(record.counters, engine))
        elif isinstance(record, PassEnd):
            assert start is not None
            if start.schedule.kind.value == "serial":
                for trial in trials:
                    engine.work({trial.lane: [trial]})
            elif trials:
                engine.work(by_lane(trials))
            trials = []
            runs: Runs = tuple(engine.runs)
            if change is not None:
                runs = change(start, runs)
            out.append(DecodeRuns(record.arm, record.pass_index, runs))
            record = replace(record, counters=_counted(record.counters, engine), log_fault=None)
        out.append(record)
    return tuple(out)


def by_lane(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    lanes: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t.dispatch_ts):
        lanes.setdefault(trial.lane, []).append(trial)
    return lanes


def _counted(counters: Counters, engine: Engine) -> Counters:
    return replace(counters, decode_total=engine.decodes)
