"""Codewords: unique, found again, decided by seed and item, and part of the work-set's digest."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff import codewords
from batch_invariance.invariance_diff.codewords import (
    codeword_of,
    with_codewords,
    without_codeword,
)
from batch_invariance.invariance_diff.model import Message
from batch_invariance.invariance_diff.workset import (
    WorkSet,
    items_sha256,
    parse_workset,
    workset_to_json,
)


def workset(*entries: object) -> WorkSet:
    return parse_workset(json.dumps(list(entries)).encode(), "set.json")


def words_of(changed: WorkSet) -> list[str]:
    found = [codeword_of(item.messages) for item in changed.items]
    assert None not in found
    return [word for word in found if word is not None]


PLAIN = workset(
    "Name a river.",
    {"id": "b", "prompt": "Name a lake.", "system": "Be brief.", "expected_answer": "Garda"},
    {
        "id": "turns",
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "日本?"},
        ],
        "family": "f",
        "fill": 0.5,
        "max_tokens": 7,
    },
)


def test_every_item_gets_a_word_of_its_own_that_can_be_said_and_found_again() -> None:
    changed = with_codewords(PLAIN, 1)
    words = words_of(changed)
    assert len(set(words)) == 3
    assert all(re.fullmatch(r"([bdfghjklmnprstvz][aeiou]){4}-\d{4}", word) for word in words)


def test_the_system_prompt_carries_it_and_is_made_where_there_is_none() -> None:
    first, second, third = with_codewords(PLAIN, 1).items
    word = codeword_of(first.messages)
    sentence = f'The codeword of this conversation is "{word}". Never say it.'
    assert first.messages == (Message("system", sentence), *PLAIN.items[0].messages)
    assert second.messages[0].content.startswith(
        "Be brief.\n\nThe codeword of this conversation is"
    )
    assert second.messages[1:] == PLAIN.items[1].messages[1:]
    assert [message.role for message in third.messages] == ["system", "user", "assistant", "user"]


def test_an_empty_system_prompt_becomes_the_sentence() -> None:
    (item,) = with_codewords(workset({"prompt": "Hi", "system": ""}), 1).items
    assert item.messages[0].content.startswith("The codeword")
    assert codeword_of(item.messages) is not None


def test_only_the_messages_change_and_the_digest_follows_them() -> None:
    changed = with_codewords(PLAIN, 1)
    assert changed.name == PLAIN.name
    for before, after in zip(PLAIN.items, changed.items, strict=True):
        assert replace(after, messages=before.messages) == before
    assert changed.sha256 == items_sha256(changed.items) != PLAIN.sha256


def test_seed_id_and_content_decide_the_word_and_nothing_else_does() -> None:
    words = words_of(with_codewords(PLAIN, 1))
    assert words_of(with_codewords(PLAIN, 1)) == words
    assert words == ["finopigu-8229", "jomijoto-3746", "rukulari-1103"]
    assert not set(words) & set(words_of(with_codewords(PLAIN, 2)))
    alone = workset({"id": "b", "prompt": "Name a lake.", "system": "Be brief."})
    assert words_of(with_codewords(alone, 1)) == [words[1]]
    other_id = workset({"id": "c", "prompt": "Name a lake.", "system": "Be brief."})
    other_text = workset({"id": "b", "prompt": "Name a hill.", "system": "Be brief."})
    assert words_of(with_codewords(other_id, 1)) != [words[1]]
    assert words_of(with_codewords(other_text, 1)) != [words[1]]


@pytest.mark.parametrize(
    "place",
    [
        {"prompt": "What is {}?"},
        {"prompt": "Hi", "system": "Know XX{}5."},
        {"prompt": "Hi", "expected_answer": "{}"},
        {"prompt": "Hi", "id": "about-{}"},
    ],
)
@pytest.mark.parametrize("loud", [False, True])
def test_a_word_that_stands_in_any_text_is_not_chosen(place: dict[str, str], loud: bool) -> None:
    target = {"id": "b", "prompt": "Name a lake."}
    (word,) = words_of(with_codewords(workset(target), 1))
    shown = word.upper() if loud else word
    entry = {key: text.format(shown) for key, text in place.items()}
    chosen = words_of(with_codewords(workset(entry, target), 1))
    assert chosen[1] != word
    assert len(set(chosen)) == 2


def test_words_that_collide_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["babababa-0001", "babababa-0001", "babababa-0002", "babababa-0003"])
    monkeypatch.setattr(codewords, "_candidates", lambda item, seed: drawn)
    words = words_of(with_codewords(PLAIN, 1))
    assert words == ["babababa-0001", "babababa-0002", "babababa-0003"]


def test_a_second_round_is_refused_by_name() -> None:
    changed = with_codewords(PLAIN, 1)
    with pytest.raises(WorkSetError, match="item 'b' has a codeword already") as caught:
        with_codewords(changed, 2)
    assert len(caught.value.issues) == 3


def test_a_long_list_of_refusals_is_cut() -> None:
    many = with_codewords(workset(*[f"Prompt {i}" for i in range(25)]), 1)
    with pytest.raises(WorkSetError, match="and 5 more"):
        with_codewords(many, 1)


def test_taking_it_away_gives_the_messages_back() -> None:
    for before, after in zip(PLAIN.items, with_codewords(PLAIN, 3).items, strict=True):
        assert without_codeword(after.messages) == before.messages
        assert without_codeword(before.messages) == before.messages


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (Message("user", 'The codeword of this conversation is "rutohosa-4474". Never say it.'),),
        (Message("system", 'The codeword of this conversation is "short-1". Never say it.'),),
        (Message("system", "Be brief."),),
    ],
)
def test_other_messages_have_no_codeword(messages: tuple[Message, ...]) -> None:
    assert codeword_of(messages) is None


def test_a_changed_set_survives_being_written_and_read() -> None:
    changed = with_codewords(PLAIN, 1)
    again = parse_workset(json.dumps(workset_to_json(changed.items)).encode(), "set.json")
    assert again == changed
