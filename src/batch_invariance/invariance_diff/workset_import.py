"""Files that people have already, read as work-sets; see `ImportFormat` for which.

Nothing is left out without a word: what a request cannot carry over is said once for the file, a
record that asks for no generation is counted, and whatever is broken is listed all at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from batch_invariance.invariance_diff.workset import (
    WorkSet,
    named_workset,
    workset_error,
    workset_from,
)
from batch_invariance.invariance_diff.workset_json import (
    JsonObject,
    decode,
    entries,
    kind,
    parse_list,
    show,
)

Placed = tuple[str, object]

_BATCH_KEYS = ("body", "custom_id")
_PLAIN_KEYS = ("item", "prompt", "messages")
_CARRIED = ("messages", "max_tokens", "max_completion_tokens", "stop")
_LENGTH_KEYS = ("max_gen_toks", "max_tokens", "max_completion_tokens", "max_new_tokens")
_CHAT_MARKERS = re.compile(
    r"<\|(?:im_start|start_header_id|start|user|assistant)\|>|<start_of_turn>|\[INST\]"
)
"""What the chat templates of common model families put around a turn."""
_SAMPLES_FILE = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.:-]+\.jsonl?")
"""How lm-evaluation-harness names its logs: the task, then the time."""


class ImportFormat(str, Enum):
    """What can be imported.

    `openai-batch`: JSON Lines of OpenAI batch requests. `lm-eval`: the per-sample log that
    lm-evaluation-harness writes with --log_samples. `lines`: plain text, one prompt a line.
    """

    OPENAI_BATCH = "openai-batch"
    LM_EVAL = "lm-eval"
    LINES = "lines"


@dataclass(frozen=True, slots=True)
class Imported:
    """A work-set, the format that it was read from, and what was not carried over, in words."""

    workset: WorkSet
    format: ImportFormat
    notes: tuple[str, ...]


def import_workset(
    data: bytes,
    name: str,
    chosen: ImportFormat | None = None,
    id_prefix: str = "",
    limit: int | None = None,
) -> Imported:
    """Reads the bytes of a file called `name`, in the `chosen` format or in what it looks like.

    At most `limit` items are taken. `id_prefix` goes before every id. Raises WorkSetError with
    every fault, each with its position, or where the format cannot be told.
    """
    faults: list[str] = []
    notes: list[str] = []
    found = chosen or detect_format(data, name)
    if found is ImportFormat.LINES:
        placed = _lines(data, faults)
    elif found is ImportFormat.LM_EVAL:
        placed = _lm_eval_samples(data, name, faults, notes)
    else:
        placed = _batch_requests(data, faults, notes)
    kept = list(islice(placed, limit))
    left_out = sum(1 for _ in placed)  # to the end, so that every fault and every note is there
    if left_out:
        notes.append(f"--limit {limit}: {left_out} further items are left out")
    if not kept and not faults:
        faults += notes
    workset = workset_from(kept, faults, name)
    if id_prefix:
        prefixed = [replace(item, id=id_prefix + item.id) for item in workset.items]
        workset = named_workset(prefixed, name)
    return Imported(workset, found, (*notes, *_remarks(workset)))


def detect_format(data: bytes, name: str) -> ImportFormat:
    """The format of a file by its content. Raises WorkSetError where that tells no single one."""
    faults: list[str] = []
    text = decode(data, faults)
    if text is None or not text.strip():
        raise workset_error(name, faults or ["is empty"])
    values = [value for _, value in entries(data, faults)]
    objects = [value for value in values if isinstance(value, JsonObject)]
    if objects and all(_has(value, _BATCH_KEYS) for value in objects):
        return ImportFormat.OPENAI_BATCH
    if objects and all("arguments" in value for value in objects):
        return ImportFormat.LM_EVAL
    strings = sum(isinstance(value, str) for value in values)
    usable = strings + sum(_has(value, _PLAIN_KEYS) for value in objects)
    if usable and usable == len(values) and not faults:
        raise workset_error(name, ["is a work-set as it is; --workset takes it"])
    if not objects and not strings and text.lstrip()[0] not in "[{":
        return ImportFormat.LINES
    why = f"{len(objects)} JSON objects, {len(values) - len(objects) + len(faults)} other entries"
    known = ", ".join(member.value for member in ImportFormat)
    raise workset_error(name, [f"has no one known form ({why}); say --format, one of {known}"])


def _has(value: JsonObject, keys: Iterable[str]) -> bool:
    return any(key in value for key in keys)


def _lines(data: bytes, faults: list[str]) -> Iterator[Placed]:
    """Each line that is not blank, without its line end. Only a line feed ends a line."""
    for number, line in enumerate((decode(data, faults) or "").split("\n"), start=1):
        if line.strip():
            yield f"line {number}", line.removesuffix("\r")


def _batch_requests(data: bytes, faults: list[str], notes: list[str]) -> Iterator[Placed]:
    """Each request as it is, without its stop strings."""
    stops = False
    settings: set[str] = set()
    for where, value in entries(data, faults):
        if not isinstance(value, JsonObject) or not _has(value, _BATCH_KEYS):
            what = "an object without a body" if isinstance(value, JsonObject) else kind(value)
            faults.append(f"{where}: must be an OpenAI batch request, is {what}")
            continue
        body = value.get("body")
        if isinstance(body, JsonObject):
            settings |= {key for key, asked in body.items() if asked is not None}
            stops = stops or bool(body.get("stop"))
            value = _with(value, "body", _with(body, "stop", None))
        yield where, value
    notes += _not_carried(stops, settings - set(_CARRIED))


def _with(obj: JsonObject, key: str, new: object) -> JsonObject:
    """A copy with another value under `key`, where it has one, that knows its repeated keys."""
    copy = JsonObject([(k, new if k == key else v) for k, v in obj.items()])
    copy.repeated = obj.repeated
    return copy


def _not_carried(stops: bool, settings: Iterable[str]) -> Iterator[str]:
    if stops:
        yield "stop strings are not carried over: answers may run on to their token limit"
    if named := ", ".join(show(key)[1:-1] for key in sorted(settings)):
        yield f"not carried over, the run states its own: {named}"


def _lm_eval_samples(
    data: bytes, name: str, faults: list[str], notes: list[str]
) -> Iterator[Placed]:
    """Each sample that asks for one generation, once, though every filter of a task logs it."""
    reader = _SampleReader(name)
    for where, value in entries(data, faults):
        found: list[str] = []
        item = reader.read(where, value, found)
        faults += [f"{where}: {fault}" for fault in found]
        if item is not None and not found:
            yield where, item
    notes += reader.notes()
    notes += _not_carried(reader.stops, reader.settings)


class _SampleReader:
    """Turns samples of lm-evaluation-harness into plain items, and keeps count of what it met."""

    def __init__(self, name: str) -> None:
        task = _SAMPLES_FILE.fullmatch(name)
        self.family = task.group(1) if task else None
        self.stops = False
        self.settings: set[str] = set()
        self._skipped: Counter[str] = Counter()
        self._repeated = 0
        self._lists = 0
        self._first: dict[str, tuple[str, JsonObject]] = {}

    def read(self, where: str, sample: object, faults: list[str]) -> JsonObject | None:
        """The item of one sample; None for one that is skipped, repeated or broken."""
        doc_id = sample.get("doc_id") if isinstance(sample, JsonObject) else None
        if not isinstance(sample, JsonObject) or "arguments" not in sample:
            faults.append("must be an lm-eval sample with doc_id and arguments")
            return None
        if isinstance(doc_id, bool) or not isinstance(doc_id, (int, str)):
            faults.append(f"doc_id must be a number or a string, is {kind(doc_id)}")
            return None
        requests = _requests(sample["arguments"])
        reason = _no_generation(requests)
        if reason is not None:
            self._skipped[reason] += 1
            return None
        asked = requests[0]
        item = JsonObject(
            [
                ("id", str(doc_id)),
                _prompt(asked[0], faults),
                ("expected_answer", self._target(sample.get("target"))),
                ("family", self.family),
                ("max_tokens", self._limit(asked[1])),
            ]
        )
        return self._once(where, str(doc_id), item, faults)

    def _once(
        self, where: str, doc_id: str, item: JsonObject, faults: list[str]
    ) -> JsonObject | None:
        first, same = self._first.setdefault(doc_id, (where, item))
        if same is item:
            return item
        if same == item:
            self._repeated += 1
        else:
            faults.append(
                f"doc_id {show(doc_id)} is already taken by {first} with another prompt or "
                "target: import each task's log by itself, with --id-prefix"
            )
        return None

    def _target(self, target: object) -> str | None:
        if isinstance(target, (list, dict)):
            self._lists += 1
            return None
        return None if target is None or target == "" else str(target)

    def _limit(self, settings: object) -> object:
        assert isinstance(settings, JsonObject)
        self.stops = self.stops or bool(settings.get("until"))
        self.settings |= settings.keys() - {"until", *_LENGTH_KEYS}
        return next((settings[key] for key in _LENGTH_KEYS if settings.get(key) is not None), None)

    def notes(self) -> Iterator[str]:
        """What was skipped, met twice or left unscored, in words."""
        for reason, count in sorted(self._skipped.items()):
            yield f"{count} records skipped: {reason}"
        if self._repeated:
            yield f"{self._repeated} records log a sample again for another filter; taken once"
        if self._lists:
            yield f"{self._lists} targets are no single text: those items have no expected answer"


def _requests(arguments: object) -> list[list[object]]:
    """The arguments of each request, from `[[prompt, settings], ...]` or from the form of newer
    logs, `{"gen_args_0": {"arg_0": prompt, "arg_1": settings}, ...}`."""
    listed = list(arguments.values()) if isinstance(arguments, JsonObject) else arguments
    if not isinstance(listed, list):
        return []
    found = []
    for entry in listed:
        values = list(entry.values()) if isinstance(entry, JsonObject) else entry
        found.append(values if isinstance(values, list) else [values])
    return found


def _no_generation(requests: list[list[object]]) -> str | None:
    """Why these requests are not one generation from text; None where they are."""
    if not requests or not requests[0]:
        return "no request"
    if all(len(args) == 2 and isinstance(args[1], JsonObject) for args in requests):
        return None if len(requests) == 1 else "several generations for one sample"
    if all(len(args) == 2 and isinstance(args[1], str) for args in requests):
        return "loglikelihood (multiple choice), no generation"
    if all(len(args) == 1 for args in requests):
        return "loglikelihood of a whole text, no generation"
    return "more than a prompt and its settings (images?)"


def _prompt(prompt: object, faults: list[str]) -> tuple[str, object]:
    """The prompt as `prompt` or `messages`; a chat is logged as JSON in a string, or in a list of
    one string."""
    in_list = isinstance(prompt, list) and len(prompt) == 1
    text = prompt[0] if isinstance(prompt, list) and in_list else prompt
    if not isinstance(text, str):
        faults.append(f"the prompt must be a string, is {kind(prompt)}")
        return "prompt", ""
    chat = parse_list(text)
    if chat and all(isinstance(m, JsonObject) and {"role", "content"} <= m.keys() for m in chat):
        return "messages", [_without_type(message) for message in chat]
    if in_list:
        faults.append("the prompt is a list that holds no JSON list of messages")
    return "prompt", text


def _without_type(message: object) -> object:
    """The harness marks every message of a chat as text; anything else stays, and is a fault."""
    if isinstance(message, JsonObject) and message.get("type") == "text":
        return JsonObject([(key, value) for key, value in message.items() if key != "type"])
    return message


def _remarks(workset: WorkSet) -> Iterator[str]:
    """What the items themselves give reason to say."""
    repeats = len(workset.items) - len({item.messages for item in workset.items})
    if repeats:
        yield f"{repeats} items repeat another's prompt"
    marked = sum(
        any(_CHAT_MARKERS.search(message.content) for message in item.messages)
        for item in workset.items
    )
    if marked:
        yield (
            f"{marked} prompts hold the markers of a chat template: the server puts its own around "
            "them once more"
        )
