"""`workset import`: what people have already becomes a work-set, and nothing is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset import parse_workset
from batch_invariance.invariance_diff.workset_import import (
    Imported,
    ImportFormat,
    detect_format,
    import_workset,
)
from reports_fixtures import Outcome, cli

GSM8K = "samples_gsm8k_2025-01-31T10-20-30.123456.jsonl"
UNTIL = {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.0}


def lines_of(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def sample(doc_id: object = 0, prompt: object = "Q: 1+1?\nA:", **more: object) -> dict[str, Any]:
    """One line of a log as lm-evaluation-harness 0.4.x writes it for a generate_until task."""
    return {
        "doc_id": doc_id,
        "doc": {"question": "1+1?", "answer": "2"},
        "target": "2",
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": UNTIL}},
        "resps": [["2"]],
        "filtered_resps": ["2"],
        "filter": "strict-match",
        "metrics": ["exact_match"],
        "doc_hash": "d0",
        "prompt_hash": "p0",
        "target_hash": "t0",
        "exact_match": 1.0,
        **more,
    }


def choice_sample(doc_id: int) -> dict[str, Any]:
    """A multiple-choice sample: one loglikelihood request for each continuation."""
    arguments = {
        f"gen_args_{n}": {"arg_0": "The sky is", "arg_1": f" {word}"}
        for n, word in enumerate(("blue", "green"))
    }
    return sample(doc_id, arguments=arguments, target="0", resps=[[["-0.1", "True"]]] * 2)


def batch(custom_id: str | None = "r1", **body: object) -> dict[str, Any]:
    asked = {"model": "gpt", "messages": [{"role": "user", "content": "Hi"}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def read(data: bytes, name: str = "f", **options: Any) -> Imported:
    return import_workset(data, name, **options)


def faults(data: bytes, **options: Any) -> tuple[str, ...]:
    with pytest.raises(WorkSetError) as caught:
        read(data, **options)
    assert str(caught.value).isprintable()
    return caught.value.issues


# --- telling the formats apart ---


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lines_of(batch(), batch("r2")), ImportFormat.OPENAI_BATCH),
        (json.dumps([batch()]).encode(), ImportFormat.OPENAI_BATCH),
        (lines_of(sample()), ImportFormat.LM_EVAL),
        (json.dumps([sample(0), sample(1)], indent=2).encode(), ImportFormat.LM_EVAL),
        (b"\xef\xbb\xbfWhat is 2+2?\r\n\r\nName a river.\r\n", ImportFormat.LINES),
        (b"42\n43\n", ImportFormat.LINES),
        (b"true story: tell one\n", ImportFormat.LINES),
        # A broken line does not hide what the others are; it is named when it is read.
        (lines_of(sample()) + b'{"doc_id": 1, "argu', ImportFormat.LM_EVAL),
    ],
)
def test_the_format_is_told_by_the_content(data: bytes, expected: ImportFormat) -> None:
    assert detect_format(data, "any.txt") is expected


@pytest.mark.parametrize(
    "data",
    [
        lines_of(batch(), sample()),
        lines_of({"question": "1+1?"}),
        b'{"prompt": "a"}\nplain text\n',
        b"[INST] a template [/INST]\n",
        b'[\n  {"doc_id": 0,\n',
        b'"quoted"\nbare\n',
    ],
)
def test_what_has_no_one_form_asks_for_the_format(data: bytes) -> None:
    (fault,) = faults(data)
    assert "say --format, one of openai-batch, lm-eval, lines" in fault


def test_a_work_set_needs_no_import() -> None:
    for data in (b'["a", {"prompt": "b"}]', b'{"item": "a"}', b'"a"\n"b"\n'):
        assert faults(data) == ("is a work-set as it is; --workset takes it",)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n", "is empty"),
        (b"ok\n\xff\n", "is not UTF-8 at byte 3; save it as UTF-8"),
    ],
)
def test_a_file_that_holds_nothing_readable(data: bytes, fault: str) -> None:
    assert faults(data) == (fault,)
    with pytest.raises(WorkSetError):
        read(data, chosen=ImportFormat.LINES)


# --- plain lines ---


def test_each_line_is_a_prompt_as_it_stands() -> None:
    data = '\ufeff  two spaces \r\n\n"quoted"\nline\u2028separator\n{"a": 1}\n'.encode()
    found = read(data, chosen=ImportFormat.LINES)
    contents = [item.messages[0].content for item in found.workset.items]
    assert contents == ["  two spaces ", '"quoted"', "line\u2028separator", '{"a": 1}']
    assert found.notes == ()


def test_repeated_lines_keep_their_ids_apart_and_are_said() -> None:
    found = read(b"a\nb\na\n")
    ids = [item.id for item in found.workset.items]
    assert ids[2] == f"{ids[0]}-2"
    assert found.notes == ("1 items repeat another's prompt",)
    assert [item.id for item in read(b"a\nb\na\n").workset.items] == ids


# --- OpenAI batch ---


def test_a_batch_keeps_ids_messages_and_limits_and_says_what_it_leaves() -> None:
    found = read(lines_of(batch(max_tokens=9, temperature=0.7, stop=["\n"]), batch("r2")))
    assert found.workset.items == (
        Item("r1", (Message("user", "Hi"),), max_tokens=9),
        Item("r2", (Message("user", "Hi"),)),
    )
    assert found.notes == (
        "stop strings are not carried over: answers may run on to their token limit",
        "not carried over, the run states its own: model, temperature",
        "1 items repeat another's prompt",
    )


def test_a_batch_that_would_ask_something_else_is_refused_with_every_fault() -> None:
    data = lines_of(
        batch(tools=[{"type": "function"}]),
        {**batch("r2"), "url": "/v1/embeddings"},
        batch("r1"),
        "text",
    )
    assert faults(data, chosen=ImportFormat.OPENAI_BATCH) == (
        "line 4: must be an OpenAI batch request, is a string",
        "line 1: body.tools is unsupported: it would change what is asked",
        "line 2: url '/v1/embeddings' is unsupported; only chat completions are",
        "line 3: id 'r1' is already taken by line 1",
    )


def test_a_key_given_twice_in_a_body_is_still_a_fault() -> None:
    line = json.dumps(batch()).replace('"model"', '"model": "x", "model"')
    assert faults(line.encode()) == ("line 1: key 'model' is given more than once in body",)


# --- lm-evaluation-harness ---


def test_a_log_becomes_items_with_stable_ids() -> None:
    other = sample(7, "Q: 2+2?\nA:", target="4")
    found = read(lines_of(sample(3), other), GSM8K)
    assert found.format is ImportFormat.LM_EVAL
    assert found.workset.items == (
        Item("3", (Message("user", "Q: 1+1?\nA:"),), "2", "gsm8k"),
        Item("7", (Message("user", "Q: 2+2?\nA:"),), "4", "gsm8k"),
    )
    assert found.notes == (
        "stop strings are not carried over: answers may run on to their token limit",
        "not carried over, the run states its own: do_sample, temperature",
    )


def test_the_older_form_of_arguments_reads_the_same() -> None:
    older = sample(3, arguments=[["Q: 1+1?\nA:", UNTIL]], target=2)
    assert read(lines_of(older), GSM8K).workset == read(lines_of(sample(3)), GSM8K).workset


def test_a_limit_of_the_harness_is_the_items_limit() -> None:
    limited = sample(arguments=[["Q", {"max_gen_toks": 256, "until": []}]])
    assert read(lines_of(limited)).workset.items[0].max_tokens == 256
    broken = sample(arguments=[["Q", {"max_gen_toks": 0}]])
    (fault,) = faults(lines_of(broken))
    assert fault.startswith("line 1: max_tokens must be a whole number from 1")


CHAT = [
    {"role": "system", "content": "Be short.", "type": "text"},
    {"role": "user", "content": "1+1?", "type": "text"},
]


@pytest.mark.parametrize("in_list", [False, True])
def test_a_chat_logged_as_json_becomes_messages(in_list: bool) -> None:
    text = json.dumps(CHAT)
    found = read(lines_of(sample(prompt=[text] if in_list else text)))
    (item,) = found.workset.items
    assert item.messages == (Message("system", "Be short."), Message("user", "1+1?"))


@pytest.mark.parametrize("prompt", ["[1, 2, 3] sorted is", "[]", "[[", '[{"role": "user"}]'])
def test_a_prompt_that_only_looks_like_json_stays_a_prompt(prompt: str) -> None:
    (item,) = read(lines_of(sample(prompt=prompt))).workset.items
    assert item.messages == (Message("user", prompt),)


def test_every_filter_logs_the_sample_again_and_it_is_taken_once() -> None:
    data = lines_of(sample(0), sample(0, filter="flexible-extract"), sample(1, "Q: other"))
    found = read(data)
    assert [item.id for item in found.workset.items] == ["0", "1"]
    assert "1 records log a sample again for another filter; taken once" in found.notes


def test_one_doc_id_with_two_prompts_is_a_fault_that_says_the_way_out() -> None:
    data = lines_of(sample(0), sample(1), sample(0, "Q: of another task"))
    assert faults(data) == (
        "line 3: doc_id '0' is already taken by line 1 with another prompt or target: import each "
        "task's log by itself, with --id-prefix",
    )


def test_choices_are_skipped_with_their_count_and_the_rest_is_read() -> None:
    rolling = sample(4, arguments=[["a whole text"]])
    images = sample(5, arguments=[["look", UNTIL, {"visual": []}]])
    several = sample(6, arguments=[["a", UNTIL], ["b", UNTIL]])
    data = lines_of(choice_sample(1), sample(2), choice_sample(3), rolling, images, several)
    found = read(data)
    assert [item.id for item in found.workset.items] == ["2"]
    assert found.notes[:4] == (
        "2 records skipped: loglikelihood (multiple choice), no generation",
        "1 records skipped: loglikelihood of a whole text, no generation",
        "1 records skipped: more than a prompt and its settings (images?)",
        "1 records skipped: several generations for one sample",
    )


def test_a_log_of_choices_alone_is_refused_by_name() -> None:
    assert faults(lines_of(choice_sample(0), choice_sample(1))) == (
        "2 records skipped: loglikelihood (multiple choice), no generation",
    )


def test_targets_that_are_no_text() -> None:
    data = lines_of(
        sample(0, "a", target=["x", "y"]),
        sample(1, "b", target=""),
        sample(2, "c", target=None),
        sample(3, "d", target=4),
    )
    found = read(data)
    assert [item.expected_answer for item in found.workset.items] == [None, None, None, "4"]
    assert "1 targets are no single text: those items have no expected answer" in found.notes


def test_all_faults_of_a_log_come_at_once() -> None:
    data = lines_of(sample(True), sample(0, 5), {"doc_id": 1}, sample(2), "x") + b"{\n"
    assert faults(data, chosen=ImportFormat.LM_EVAL) == (
        "line 1: doc_id must be a number or a string, is true",
        "line 2: the prompt must be a string, is 5",
        "line 3: must be an lm-eval sample with doc_id and arguments",
        "line 5: must be an lm-eval sample with doc_id and arguments",
        "line 6: not JSON: Expecting property name enclosed in double quotes at column 2",
    )


def test_prompts_that_carry_a_template_already_are_said() -> None:
    found = read(lines_of(sample(prompt="<|im_start|>user\nHi<|im_end|>\n")))
    assert "1 prompts hold the markers of a chat template" in found.notes[-1]


# --- limit, prefix ---


def test_limit_takes_the_first_and_says_how_many_are_left() -> None:
    data = lines_of(choice_sample(9), *(sample(n, f"Q{n}") for n in range(5)))
    found = read(data, limit=2)
    assert [item.id for item in found.workset.items] == ["0", "1"]
    assert "--limit 2: 3 further items are left out" in found.notes
    assert not any("left out" in note for note in read(data, limit=5).notes)


@pytest.mark.parametrize("data", [b"a\nb\n", lines_of(batch(), batch("r2")), lines_of(sample())])
def test_the_prefix_goes_before_every_id_and_nothing_else_changes(data: bytes) -> None:
    plain, prefixed = read(data).workset, read(data, id_prefix="t/").workset
    assert [item.id for item in prefixed.items] == [f"t/{item.id}" for item in plain.items]
    assert [item.messages for item in prefixed.items] == [item.messages for item in plain.items]
    assert prefixed.sha256 != plain.sha256


# --- the command line ---


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / GSM8K
    path.write_bytes(lines_of(sample(0), sample(1, "Q: 3*3?\nA:", target="9")))
    return path


def run(*words: object) -> Outcome:
    return cli("workset", "import", *words)


def test_stdout_holds_the_work_set_and_stderr_the_notes(log: Path) -> None:
    outcome = run(log)
    assert outcome.code == 0
    workset = parse_workset(outcome.stdout.encode(), "w.json")
    assert workset.items == read(log.read_bytes(), log.name).workset.items
    assert outcome.stderr.splitlines() == [
        "lm-eval: 2 items",
        "note: stop strings are not carried over: answers may run on to their token limit",
        "note: not carried over, the run states its own: do_sample, temperature",
    ]


def test_a_file_is_written_once_and_never_over_another(log: Path, tmp_path: Path) -> None:
    output = tmp_path / "set.json"
    outcome = run(log, "-o", output, "--id-prefix", "g-", "--limit", 1, "--json")
    assert outcome.code == 0
    report = json.loads(outcome.stdout)
    workset = parse_workset(output.read_bytes(), output.name)
    assert [item.id for item in workset.items] == ["g-0"]
    assert (report["format"], report["n_items"]) == ("lm-eval", 1)
    assert report["sha256"] == workset.sha256
    before = output.read_bytes()
    again = run(log, "-o", output)
    assert again.code == 2
    assert f"{output} exists already; choose another file" in again.stderr
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--limit", 0), "--limit 0: give 1 or more"),
        (("--id-prefix", "a\nb"), "--id-prefix 'a\\nb': give printable characters"),
        (("--format", "csv"), "invalid choice: 'csv'"),
        (("--json",), "--json needs -o"),
        (("-o", "/no/such/folder/set.json"), "there is no folder /no/such/folder"),
        (("--", "-ngl", "0"), "workset import starts no server"),
    ],
)
def test_arguments_that_cannot_be_are_refused(log: Path, words: tuple[object], said: str) -> None:
    outcome = run(log, *words)
    assert outcome.code == 2
    assert said in outcome.stderr
    assert outcome.stdout == "" or "--json" in words


def test_a_bad_file_ends_with_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path, output = tmp_path / "bad.jsonl", tmp_path / "set.json"
    path.write_bytes(lines_of(sample(0), sample(0, "other")))
    outcome = run(path, "-o", output)
    assert outcome.code == 1
    assert outcome.stderr.startswith("batch-invariance: work-set bad.jsonl: line 2: doc_id '0'")
    assert not output.exists()
    missing = run(tmp_path / "none")
    assert missing.code == 2
    assert "No such file or directory; check the path" in missing.stderr
