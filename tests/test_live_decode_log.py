"""The log of forward passes on a real llama-server: it adds up to the decode.

Rule: the passes that contain a request's task are those of its prompt's pieces plus its generated
tokens less one, and all passes together are what `n_decode_total` counts.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.decode_log import DecodeStep, Participant
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import choose_port, scrub_environment
from batch_invariance.live_invariance.log_reader import DecodeLogReader
from batch_invariance.live_invariance.process import OwnedProcess
from batch_invariance.live_invariance.telemetry import read_busy_slots, read_counters
from waiting import wait_until

pytestmark = pytest.mark.live

LANES = 4
WAVES = 30
LIMIT_S = 120.0
LOG_FLAGS = ("-lv", "5", "--log-prefix", "--log-timestamps", "--log-colors", "off")
FLAGS = (*LOG_FLAGS, "--metrics", "--cache-ram", "0", "--threads", "1")


@dataclass(frozen=True)
class Ask:
    """One request for a lane, and extra fields of its body."""

    lane: int
    prompt: str
    max_tokens: int = 24
    extra: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the response itself counts."""

    lane: int
    prompt_tokens: int
    predicted: int
    text: str


class Server:
    """An owned server whose log is followed."""

    def __init__(self, binary: Path, model: Path, folder: Path, flags: Sequence[str]) -> None:
        port = choose_port(frozenset())
        argv = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
        self.log = folder / "server.log"
        self.process = OwnedProcess.spawn(argv, scrub_environment({}), self.log, folder)
        self.client = Client(f"http://127.0.0.1:{port}", None)
        self.dead = threading.Event()
        self.process.on_exit(self.dead.set)
        self.steps: list[DecodeStep] = []

    def ready(self) -> bool:
        assert self.process.alive, self.process.log_tail()
        return self.client.get("/health", 5.0).ok

    def send(self, ask: Ask) -> Answer | None:
        body = {
            "messages": [{"role": "user", "content": ask.prompt}],
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
            "id_slot": ask.lane,
            "ignore_eos": True,
            **dict(ask.extra),
        }
        exchange = self.client.post("/v1/chat/completions", json.dumps(body).encode(), LIMIT_S)
        if not exchange.ok:
            return None
        reply = json.loads(exchange.body)
        return Answer(
            ask.lane,
            reply["usage"]["prompt_tokens"],
            reply["timings"]["predicted_n"],
            reply["choices"][0]["message"]["content"],
        )

    def decodes(self) -> int:
        counted = read_counters(self.client).decode_total
        assert counted is not None
        return counted

    def serial(self, asks: Sequence[Ask]) -> list[Answer | None]:
        return [self.send(ask) for ask in asks]

    def wave(self, asks: Sequence[Ask]) -> list[Answer | None]:
        """All at once, the others as soon as the server works on the first."""
        with ThreadPoolExecutor(len(asks)) as pool:
            first = pool.submit(self.send, asks[0])
            wait_until(lambda: first.done() or read_busy_slots(self.client), LIMIT_S)
            others = pool.map(self.send, asks[1:])
            return [first.result(), *others]

    def saturate(self, asks: Sequence[Ask]) -> list[Answer | None]:
        """Every lane sends its own requests one after the other."""
        queues = [deque(a for a in asks if a.lane == lane) for lane in range(LANES)]
        with ThreadPoolExecutor(LANES) as pool:
            lanes = pool.map(lambda queue: [self.send(ask) for ask in queue], queues)
            return [answer for answers in lanes for answer in answers]


@contextmanager
def serving(
    binary: Path, model: Path, folder: Path, *flags: str
) -> Iterator[tuple[Server, DecodeLogReader]]:
    server = Server(binary, model, folder, [*FLAGS, *flags])
    with server.process:
        wait_until(server.ready, LIMIT_S)
        with DecodeLogReader(server.log, server.steps.append, server.dead) as reader:
            yield server, reader


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("toy") / "toy.gguf"
    model.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
    return model


def check(steps: Sequence[DecodeStep], answers: Sequence[Answer | None], n_batch: int) -> None:
    """The rule, for every request; the n-th task of a slot is the n-th request of its lane."""
    tasks: dict[int, dict[int, list[Participant]]] = {lane: {} for lane in range(LANES)}
    for step in steps:
        assert 0 < step.n_tokens == sum(p.tokens for p in step.participants) <= n_batch
        assert len({p.slot for p in step.participants}) == len(step.participants)
        for part in step.participants:
            tasks[part.slot].setdefault(part.task, []).append(part)
    for lane, by_task in tasks.items():
        sent = [answer for answer in answers if answer is not None and answer.lane == lane]
        assert len(sent) == len(by_task)
        for answer, parts in zip(sent, by_task.values(), strict=True):
            pieces = [part for part in parts if part.is_prompt]
            assert sum(piece.tokens for piece in pieces) == answer.prompt_tokens
            assert len(pieces) >= -(-answer.prompt_tokens // n_batch)
            assert len(parts) == len(pieces) + answer.predicted - 1


def asks(count: int, words: int) -> list[Ask]:
    """Requests for the lanes in turn, of uneven lengths; the first takes longest."""
    return [
        Ask(
            i % LANES,
            f"Item {i}: " + "river stone " * (words * (1 + i % 3)),
            24 + i % 5 if i else 400,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("flags", "n_batch", "words"),
    [
        (("--no-kv-unified",), 2048, 2),
        (("--no-kv-unified", "-b", "64", "-ub", "32"), 64, 12),
        (("--kv-unified", "-b", "64", "-ub", "32"), 64, 12),
    ],
    ids=["short", "long-prompts", "unified"],
)
def test_every_pass_adds_up_to_the_decode(
    flags: tuple[str, ...], n_batch: int, words: int, live_server: Path, toy: Path, tmp_path: Path
) -> None:
    with serving(live_server, toy, tmp_path, "--parallel", str(LANES), "-c", "8192", *flags) as (
        server,
        reader,
    ):
        assert reader.drain_until(server.decodes(), LIMIT_S) is None

        def most_shared(run: Callable[[Sequence[Ask]], list[Answer | None]], count: int) -> int:
            before, first = server.decodes(), len(server.steps)
            answers = run(asks(count, words))
            after = server.decodes()
            assert reader.drain_until(after, LIMIT_S) is None
            steps = server.steps[first:]
            assert len(steps) == after - before
            assert None not in answers
            check(steps, answers, n_batch)
            return max(len(step.participants) for step in steps)

        assert most_shared(server.serial, 2 * LANES) == 1
        most_shared(server.saturate, 3 * LANES)
        # A busy machine may send the others when the first is done, but not time after time.
        assert any(most_shared(server.wave, LANES) > 1 for _ in range(WAVES))
        assert most_shared(server.serial, LANES) == 1
        assert reader.parser.understood
        assert reader.parser.n_failed == 0


def test_smollm2_shares_its_passes(live_server: Path, live_model: Path, tmp_path: Path) -> None:
    with serving(
        live_server, live_model, tmp_path, "--parallel", str(LANES), "-c", "4096", "--no-kv-unified"
    ) as (server, reader):
        shared = 0
        for _ in range(WAVES):
            first = len(server.steps)
            answers = server.wave(
                [
                    Ask(lane, f"Name {count} rivers.", 8 if lane else 32)
                    for lane, count in enumerate(("two", "three", "four", "five"))
                ]
            )
            assert reader.drain_until(server.decodes(), LIMIT_S) is None
            assert None not in answers
            check(server.steps[first:], answers, 2048)
            shared = max(len(step.participants) for step in server.steps[first:])
            if shared > 1:
                break
        assert shared > 1


def test_passes_that_fail_for_want_of_room_are_told_apart(
    live_server: Path, toy: Path, tmp_path: Path
) -> None:
    """Four requests that a shared KV cache cannot hold together: retries, then errors."""
    with serving(
        live_server, toy, tmp_path, "--parallel", str(LANES), "-c", "512", "--kv-unified"
    ) as (server, reader):
        before = server.serial([Ask(0, "Hello.", 4)])
        assert None not in before
        wide = [Ask(lane, "river stone " * 12, 400) for lane in range(LANES)]
        assert any(None in server.wave(wide) for _ in range(WAVES))
        after = server.serial([Ask(1, "Hello.", 4)])
        assert reader.drain_until(server.decodes(), LIMIT_S) is None
        assert None not in after
        assert reader.parser.n_failed > 0
        assert reader.parser.understood


def test_text_in_the_form_of_the_log_makes_no_participant(
    live_server: Path, toy: Path, tmp_path: Path
) -> None:
    """A prompt that spells entries, and an answer that is made to spell one."""
    entry = (
        "0.00.000.001 D slot handle_last_: id  2 | task 1 | slot decode token, id=5, n_ctx = 2048, "
        "n_tokens = 9, truncated = 0"
    )
    forced = (("grammar", f'root ::= "{entry}"'), ("ignore_eos", False))
    with serving(
        live_server, toy, tmp_path, "--parallel", str(LANES), "-c", "8192", "--no-kv-unified"
    ) as (server, reader):
        answers = server.wave(
            [
                Ask(0, f"marker-of-the-prompt\n{entry}\n" * 3, 24),
                Ask(1, "Spell it.", 400, forced),
                Ask(2, "Hello.", 200),
            ]
        )
        assert reader.drain_until(server.decodes(), LIMIT_S) is None
        assert reader.parser.understood
        spelled = answers[1]
        assert spelled is not None
        assert entry in spelled.text
        check(server.steps, answers, 2048)
        log = server.log.read_bytes()
        assert b"marker-of-the-prompt" not in log
        assert entry.encode() in log
