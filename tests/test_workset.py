from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset import WorkSet, parse_workset, workset_to_json

EXAMPLES = Path(__file__).parent.parent / "examples"


def parse(value: object) -> WorkSet:
    return parse_workset(json.dumps(value).encode(), "w.json")


def parse_lines(*values: object) -> WorkSet:
    return parse_workset("\n".join(json.dumps(value) for value in values).encode(), "w.jsonl")


def issues(data: bytes | str | Sequence[object]) -> tuple[str, ...]:
    if not isinstance(data, (bytes, str)):
        data = json.dumps(data)
    with pytest.raises(WorkSetError) as caught:
        parse_workset(data.encode() if isinstance(data, str) else data, "w.json")
    message = str(caught.value)
    assert message.startswith("work-set w.json: ")
    assert message.isprintable()
    return caught.value.issues


def batch(**body: object) -> dict[str, object]:
    return {"custom_id": "r1", "body": {"messages": [{"role": "user", "content": "Hi"}], **body}}


def test_reads_every_field_of_a_plain_object() -> None:
    workset = parse(
        [
            {
                "id": "q1",
                "system": "Be short.",
                "prompt": "2+2?",
                "expected_answer": "4",
                "family": "math",
                "fill": 1,
                "max_tokens": 7,
            }
        ]
    )
    messages = (Message("system", "Be short."), Message("user", "2+2?"))
    assert workset.name == "w.json"
    assert workset.items == (Item("q1", messages, "4", "math", 1.0, 7),)
    assert isinstance(workset.items[0].fill, float)


def test_reads_strings_items_prompts_and_messages_in_one_list() -> None:
    chat = [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]
    workset = parse(["a", {"item": "b"}, {"prompt": ""}, {"messages": chat}])
    assert [[m.content for m in item.messages] for item in workset.items] == [
        ["a"], ["b"], [""], ["c", "d"],
    ]  # fmt: skip


def test_reads_json_lines_with_blank_lines_and_line_separators_in_strings() -> None:
    data = '\n{"prompt": "a\u2028b"}\r\n\r\n"second"\n'.encode()
    workset = parse_workset(data, "w.jsonl")
    assert [item.messages[0].content for item in workset.items] == ["a\u2028b", "second"]


def test_reads_openai_batch_requests_and_ignores_what_the_run_pins() -> None:
    line = {
        "custom_id": "r1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "gpt",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_completion_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "seed": 2**64 - 1,
            "stream": False,
            "n": 1,
            "stop": None,
            "tools": [],
            "response_format": {"type": "text"},
        },
    }
    other = {**line, "custom_id": "r2", "expected_answer": "Hello"}
    assert parse_lines(line, other).items == (
        Item("r1", (Message("user", "Hi"),), max_tokens=9),
        Item("r2", (Message("user", "Hi"),), expected_answer="Hello", max_tokens=9),
    )
    assert parse_lines(line).items == parse([line]).items


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("n", 2),
        ("n", True),
        ("stream", True),
        ("logit_bias", {"5": -100}),
        ("stop", ["\n"]),
        ("stop", "x"),
    ],
)
def test_names_batch_fields_that_would_change_the_question(key: str, value: object) -> None:
    (issue,) = issues([batch(**{key: value})])
    assert issue == f"item [0]: body.{key} is unsupported: it would change what is asked"


def test_text_parts_are_joined_as_the_server_joins_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    workset = parse([{"messages": [{"role": "user", "content": parts}]}])
    assert workset.items[0].messages == (Message("user", "a\nb"),)


def test_derived_ids_come_from_content_and_repeats_get_a_suffix() -> None:
    first = parse(["a", "b", "a", {"item": "a"}, {"item": "a", "expected_answer": "x"}])
    ids = [item.id for item in first.items]
    assert ids[2] == f"{ids[0]}-2"
    assert ids[3] == f"{ids[0]}-3"
    assert len(set(ids)) == 5
    assert len(ids[0]) == 12
    assert parse(["b", "a"]).items[1].id == ids[0]


def test_a_derived_id_gives_way_to_an_explicit_one() -> None:
    base = parse(["a"]).items[0].id
    workset = parse(["a", {"id": base, "prompt": "other"}])
    assert [item.id for item in workset.items] == [f"{base}-2", base]


def test_digest_is_of_the_items_and_not_of_their_spelling() -> None:
    plain = parse([{"id": "a", "prompt": "ä", "fill": 1}])
    chat = {"fill": 1.0, "messages": [{"content": "ä", "role": "user"}], "id": "a"}
    spaced = parse_workset(
        b"\xef\xbb\xbf" + json.dumps([chat], indent=3, ensure_ascii=False).encode(), "other"
    )
    assert spaced.sha256 == plain.sha256
    assert parse([{"id": "a", "prompt": "a", "fill": 1}]).sha256 != plain.sha256


def test_json_form_reads_back_to_the_same_items() -> None:
    workset = parse(["a", "a", {"prompt": "\0é😀", "fill": 0.5, "family": "f", "max_tokens": 3}])
    again = parse(workset_to_json(workset.items))
    assert again.items == workset.items
    assert again.sha256 == workset.sha256


@pytest.mark.parametrize("text", ["", " \n\t", "你好, 🤖", "\0", "\x1b[31mred", "x" * 300_000])
def test_any_text_is_a_prompt(text: str) -> None:
    assert parse([text]).items[0].messages[0].content == text


@pytest.mark.parametrize(
    ("data", "issue"),
    [
        (b"", "is empty; it must be a JSON list or JSON Lines"),
        (b"\xef\xbb\xbf \r\n", "is empty; it must be a JSON list or JSON Lines"),
        (b"[]", "holds no items"),
        (b'["a", "\xff"]', "is not UTF-8 at byte 7; save it as UTF-8"),
        ('["a"]'.encode("utf-16"), "is not UTF-8 at byte 0; save it as UTF-8"),
        (b'["a",', "not JSON: Expecting value at line 1 column 6"),
        (b"[" * 100_000, "lists or objects are nested too deeply"),
        (b'["' + b"a", "not JSON: Unterminated string starting at at line 1 column 2"),
        (b"42", "line 1: must be an object or a string, is 42"),
        (b'"a"\n{"prompt": }', "line 2: not JSON: Expecting value at column 12"),
        (b'{"prompt": "a"}\n[]', "line 2: must be an object or a string, is an empty list"),
    ],
)
def test_says_what_is_wrong_with_the_file(data: bytes, issue: str) -> None:
    assert issues(data) == (issue,)


@pytest.mark.parametrize(
    ("entry", "issue"),
    [
        (None, "must be an object or a string, is null or missing"),
        ({}, "needs exactly one of item, prompt and messages, has none of them"),
        (
            {"item": "a", "prompt": "a"},
            "needs exactly one of item, prompt and messages, has item and prompt",
        ),
        ({"prompt": 5}, "prompt must be a string, is 5; put it in quotes"),
        ({"prompt": "a", "expected_answer": 4}, "must be a string, is 4; put it in quotes"),
        ({"prompt": "a", "expected_answer": ["4"]}, "expected_answer must be a string, is a list"),
        ({"prompt": "a", "promt": "b"}, "unknown key promt; did you mean prompt?"),
        ({"prompt": "a", "\x1b[2J": 1}, "unknown key '\\x1b[2J'"),
        ({"prompt": "a", "k" * 100_000: 1}, f"unknown key '{'k' * 40}'..."),
        ({"prompt": "a", "fill": 1.5}, "fill must be a number from 0 to 1, is 1.5"),
        ({"prompt": "a", "fill": True}, "fill must be a number from 0 to 1, is true"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be a whole number from 1"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens must be a whole number from 1"),
        ({"prompt": "a", "max_tokens": 2.0}, "max_tokens must be a whole number from 1"),
        ({"prompt": "a", "max_tokens": 2**31}, "max_tokens must be a whole number from 1"),
        ({"prompt": "a", "max_tokens": 10**400}, "max_tokens is NaN, infinite or out of range"),
        ({"prompt": "a", "fill": float("nan")}, "fill is NaN, infinite or out of range"),
        ({"prompt": "a\ud800"}, "prompt holds a lone surrogate and cannot be sent as UTF-8"),
        ("\udfff", "text holds a lone surrogate and cannot be sent as UTF-8"),
        ({"prompt": "a", "id": ""}, "id '' must be non-empty and without control characters"),
        ({"prompt": "a", "id": "a\nb"}, "id 'a\\nb' must be non-empty"),
        ({"prompt": "a", "id": 7}, "id must be a string, is 7; put it in quotes"),
        ({"messages": []}, "messages is an empty list; give at least one message"),
        ({"messages": "a"}, "messages must be a list of messages, is a string"),
        ({"messages": ["a"]}, "messages[0] must be an object, is a string"),
        (
            {"messages": [{"role": "robot", "content": "a"}]},
            "messages[0].role must be one of system, user, assistant, tool, is 'robot'",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content must be a string or a list"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": []}]},
            "unknown key messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            'messages[0].content[0] must be {"type": "text", "text": "..."}',
        ),
        (
            {"system": "s", "messages": [{"role": "system", "content": "t"}]},
            "system is given beside a system message; give it once",
        ),
        ({"custom_id": "x"}, "body must be an object, is null or missing"),
        ({**batch(), "url": "/v1/embeddings"}, "url '/v1/embeddings' is unsupported"),
        (batch(max_tokens=1, max_completion_tokens=2), "max_completion_tokens differ; give one"),
        (batch(messages=None), "body.messages must be a list of messages"),
        (batch(temprature=1), "unknown key body.temprature; did you mean temperature?"),
    ],
)
def test_says_what_is_wrong_with_an_item(entry: object, issue: str) -> None:
    (found,) = issues(["fine", entry])
    assert found.startswith("item [1]: ")
    assert issue in found


def test_deep_nesting_inside_one_item_does_not_hide_the_others() -> None:
    deep = '{"prompt": "a", "id": ' + "[" * 100 + "]" * 100 + "}"
    found = issues(f'[{deep}, {{"prompt": 1}}]')
    assert "item [0]: lists or objects are nested too deeply" in found
    assert "item [1]: prompt must be a string, is 1; put it in quotes" in found


def test_repeated_keys_are_faults_wherever_they_stand() -> None:
    line = '{"prompt": "a", "prompt": "b", "messages": [{"role": "x", "role": "user"}]}'
    found = issues(line)
    assert "line 1: key 'prompt' is given more than once" in found
    assert "line 1: key 'role' is given more than once in messages[0]" in found


def test_explicit_ids_must_differ_and_both_places_are_named() -> None:
    twice = [{"id": "q", "prompt": "a"}, "x", {"id": "q", "prompt": "b"}]
    assert issues(twice) == ("item [2]: id 'q' is already taken by item [0]",)
    assert issues("\n".join(json.dumps(entry) for entry in twice)) == (
        "line 3: id 'q' is already taken by line 1",
    )


def test_all_faults_are_listed_at_once_up_to_a_limit() -> None:
    assert len(issues([{"prompt": 1, "fill": 2}, 3])) == 3
    found = issues(list(range(50)))
    assert len(found) == 21
    assert found[-1] == "and 30 more"


def test_a_file_name_with_control_characters_is_shown_escaped() -> None:
    with pytest.raises(WorkSetError) as caught:
        parse_workset(b"", "a\x1b[2Jb\n.json")
    assert str(caught.value).isprintable()


def test_arbitrary_bytes_parse_or_raise_a_work_set_error() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "\U0001f600"}]}]
    seeds = [
        json.dumps([batch(stop=None), {"prompt": "é", "fill": 0.5, "id": "x"}, "y"]).encode(),
        b'{"item": "a", "max_tokens": 3}\n"s"\n' + json.dumps(batch(seed=1)).encode(),
        json.dumps([{"messages": chat, "expected_answer": "long " * 20}]).encode(),
    ]
    pieces = [b"[", b"{", b'"', b"\\ud800", b"NaN", b"1e999", b"9" * 5000, b"null", b"true", b"\0"]
    rng = random.Random(20240607)
    parsed = 0
    refused: list[WorkSetError] = []
    for _ in range(2_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice([1, 1, 4])):
            at = rng.randrange(len(data) + 1)
            until = at + rng.choice([0, 0, 1, 5])
            data[at:until] = rng.choice([*pieces, bytes([rng.randrange(256)]), b""])
        try:
            workset = parse_workset(bytes(data), "fuzz")
        except WorkSetError as error:
            refused.append(error)
        else:
            parsed += 1
            assert parse(workset_to_json(workset.items)).items == workset.items
    assert parsed > 50
    assert all(error.issues and str(error).isprintable() for error in refused)


@pytest.mark.parametrize(("name", "least"), [("workset.json", 24), ("workset_short.json", 16)])
def test_example_work_sets_parse_and_can_be_scored(name: str, least: int) -> None:
    workset = parse_workset((EXAMPLES / name).read_bytes(), name)
    assert len(workset.items) >= least
    assert len({item.messages for item in workset.items}) == len(workset.items)
    assert sum(item.expected_answer is not None for item in workset.items) >= least // 2
    assert all(item.family for item in workset.items)
