"""Contamination: a companion's text in an answer is named, what a model says by itself is not."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.codec import from_json, to_json
from batch_invariance.invariance_diff.codewords import codeword_of, with_codewords
from batch_invariance.invariance_diff.contamination import (
    SEARCHED_CHARACTERS,
    CompanionText,
    Contamination,
    DivergentText,
    Donor,
    DonorKind,
    find_donor,
)
from batch_invariance.invariance_diff.model import Arm, Completion, Message
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.shared_text import (
    GRAM,
    STEP,
    common_length,
    shared_runs,
    window_of,
    without,
)
from batch_invariance.invariance_diff.workset import parse_workset
from reports_fixtures import light_cell

LETTER = "Please write to my landlord that the boiler in Hazel Street has leaked since Tuesday."
LOIRE = (
    "The Loire is the longest river in France; it rises in the Ardeche and flows past Orleans, "
    "Tours and Nantes before it meets the Atlantic Ocean near Saint-Nazaire."
)


def user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def x(
    text: str, prompt: str = "Name a mountain.", reference: str | None = "Etna."
) -> DivergentText:
    return DivergentText(text, user(prompt), reference)


def y(name: str, prompt: str, reference: str | None = "No.") -> CompanionText:
    return CompanionText(name, user(prompt), reference)


def only(found: Contamination | None) -> Donor:
    assert found is not None
    (donor,) = found.donors
    return donor


# What is contamination.


def test_a_companions_prompt_in_the_answer_is_named_with_its_place() -> None:
    text = f"Etna, and also {LETTER} Thanks."
    donor = only(find_donor(x(text), [y("other", "Name a lake in Italy."), y("mail", LETTER)]))
    assert donor == Donor("mail", DonorKind.PROMPT, len(LETTER), text.index(LETTER))


def test_a_part_of_a_prompt_is_enough_when_it_is_long_and_of_many_words() -> None:
    part = "my landlord that the boiler in Hazel Street"
    text = f"Etna {part} and so on"
    donor = only(find_donor(x(text), [y("mail", LETTER)]))
    assert donor.kind is DonorKind.PROMPT
    assert text[donor.start : donor.start + donor.n_chars].strip() == part


def test_a_companions_answer_in_the_answer_is_named() -> None:
    text = f"Etna. {LOIRE}"
    donor = only(find_donor(x(text), [y("river", "Which river is long?", LOIRE)]))
    assert donor == Donor("river", DonorKind.ANSWER, len(LOIRE), text.index(LOIRE))


def test_two_answers_that_changed_places_are_seen_at_a_lower_length() -> None:
    swapped = LOIRE[:78]
    assert only(find_donor(x(swapped), [y("river", "Which is long?", swapped)])) == Donor(
        "river", DonorKind.ANSWER, 78, 0
    )
    assert find_donor(x(f"Etna {swapped}"), [y("river", "Which is long?", swapped)]) is None


def test_a_prompt_from_a_template_is_told_when_it_stands_there_whole() -> None:
    items = [y(f"q{i}", f"Question {i}: name a river, say why.") for i in range(12)]
    own = items.pop(3)
    text = "Because Question 1: name a river, say why. one"
    subject = DivergentText(text, own.messages, "Because the Nile is long")
    assert only(find_donor(subject, items)) == Donor("q1", DonorKind.PROMPT, 34, 8)
    eleven = dataclasses.replace(subject, text=text.replace("Question 1:", "Question 11:"))
    assert only(find_donor(eleven, items)).id == "q11"


def test_the_whole_prompt_that_holds_another_one_is_the_donor() -> None:
    short, long = "Tell me about the town hall", "Tell me about the town hall of Bruges"
    found = find_donor(x(f"Etna {long}"), [y("short", short), y("long", long)])
    assert only(found).id == "long"


def test_a_codeword_counts_whatever_its_length_and_case() -> None:
    entries = json.dumps(["Name a mountain.", "Name a lake.", "Name a hill."]).encode()
    items = with_codewords(parse_workset(entries, "set"), 1).items
    word = codeword_of(items[1].messages)
    assert word is not None
    companions = [CompanionText(item.id, item.messages, "Garda.") for item in items[1:]]
    subject = DivergentText(f"Etna. {word.upper()}!", items[0].messages, "Etna.")
    assert only(find_donor(subject, companions)) == Donor(
        items[1].id, DonorKind.CODEWORD, len(word), 6
    )
    own = dataclasses.replace(subject, text=f"Etna. {codeword_of(items[0].messages)}")
    assert find_donor(own, companions) is None
    alone = dataclasses.replace(subject, reference=f"Etna. {word}?")
    assert find_donor(alone, companions) is None


def test_the_sentence_around_the_codeword_is_no_ones_text() -> None:
    entries = json.dumps(["Name a mountain.", "Name a lake."]).encode()
    items = with_codewords(parse_workset(entries, "set"), 1).items
    said = 'The codeword of this conversation is "secret". Never say it.'
    subject = DivergentText(f"Etna. {said}", items[0].messages, "Etna.")
    assert find_donor(subject, [CompanionText("b", items[1].messages, None)]) is None


def test_an_identical_prompt_is_a_donor_by_its_codeword_alone() -> None:
    entries = json.dumps(["Which river is long?", "Which river is long?"]).encode()
    items = with_codewords(parse_workset(entries, "set"), 1).items
    word = codeword_of(items[1].messages)
    twin = CompanionText("twin", items[1].messages, LOIRE)
    assert find_donor(DivergentText(LOIRE, items[0].messages, "The Nile."), [twin]) is None
    leaked = DivergentText(f"{LOIRE} {word}", items[0].messages, "The Nile.")
    assert only(find_donor(leaked, [twin])).kind is DonorKind.CODEWORD


def test_all_donors_are_listed_the_longest_first() -> None:
    coat = "Describe the green velvet coat that Aunt Matilda wore."
    boat = "Describe the small copper boat that Uncle Reginald had."
    text = f"{coat} {LETTER} {boat} {LOIRE}"
    companions = [
        y("boat", boat),
        y("mail", LETTER),
        y("coat", coat),
        y("river", "Which is long?", LOIRE),
    ]
    found = find_donor(x(text), companions)
    assert found is not None
    lengths = [donor.n_chars for donor in found.donors]
    assert [donor.id for donor in found.donors] == ["river", "mail", "boat", "coat"]
    assert lengths == sorted(lengths, reverse=True)


def test_equal_lengths_stand_in_the_order_of_the_companions() -> None:
    one = "Say what the grey heron eats at noon."
    two = "Say how the tall camel walks by night"
    for order in ([y("b", one), y("a", two)], [y("a", two), y("b", one)]):
        found = find_donor(x(f"{one}\n{two}"), order)
        assert found is not None
        assert [donor.n_chars for donor in found.donors] == [37, 37]
        assert [donor.id for donor in found.donors] == [item.id for item in order]


def test_copies_of_the_donors_item_are_all_listed() -> None:
    copies = [y("mail", LETTER), y("mail-2", LETTER), y("mail", LETTER)]
    found = find_donor(x(LETTER), copies)
    assert found is not None
    assert [donor.id for donor in found.donors] == ["mail", "mail-2"]


def test_a_leak_between_passages_of_ones_own_is_found() -> None:
    prompt = "Translate: the weather was fine and the harbour full of ships from the north."
    text = f"{prompt} {LETTER} {prompt}"
    assert only(find_donor(x(text, prompt), [y("mail", LETTER)])).id == "mail"


def test_system_prompts_and_earlier_turns_belong_to_the_prompt() -> None:
    secret = "The customer is called Ottilie Brandt and owes the bakery ninety crowns."
    for role in ("system", "assistant"):
        companion = CompanionText("c", (Message(role, secret), *user("Hello")), None)
        assert only(find_donor(x(f"Well, {secret}"), [companion])).id == "c"


@pytest.mark.parametrize(
    "leak",
    [
        "昨日の会議で山田さんが提案した新しい倉庫の場所はまだ秘密です。",
        "Прошу никому не говорить, что Наталья переехала вчера в Казань.",
        "Schreib bitte meiner Großmutter Käthe, dass Jürgen übermorgen früh anreist 🙂.",
    ],
)
def test_any_script_is_searched(leak: str) -> None:
    text = f"Etna 🏔️ {leak}"
    donor = only(find_donor(x(text), [y("c", f"{leak} OK?")]))
    assert text[donor.start : donor.start + donor.n_chars].strip() == leak


# What is not.


@pytest.mark.parametrize(
    "said",
    [
        "The answer is",
        "The answer is that in the middle of the day it is warm.",
        "Here is a list of the most common ones:",
        "I'm sorry, but I can't assist with that request.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25",
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
        "| --- " * 30,
        "ha " * 60,
        'if __name__ == "__main__":\n    main()',
    ],
)
def test_drift_into_a_phrase_that_a_companion_answered_with_is_drift(said: str) -> None:
    assert find_donor(x(f"Etna. {said}"), [y("c", "Which is long?", said)]) is None


@pytest.mark.parametrize("said", ["in the middle of the night", "a list of the largest", "? " * 99])
def test_a_phrase_of_a_prompt_is_too_little(said: str) -> None:
    assert find_donor(x(f"Etna {said} hm"), [y("c", f"I woke {said} and ran")]) is None


def test_what_the_own_prompt_holds_is_own() -> None:
    assert find_donor(x(f"Etna {LETTER}", f"Repeat: {LETTER}"), [y("mail", LETTER)]) is None
    system = DivergentText(LETTER, (Message("system", LETTER), *user("Go")), None)
    assert find_donor(system, [y("mail", LETTER)]) is None


def test_what_the_own_answer_holds_is_own() -> None:
    alone = f"Etna. Also: {LETTER}"
    assert find_donor(x(f"It is {LETTER}", reference=alone), [y("mail", LETTER)]) is None
    assert find_donor(x(f"It is {LOIRE}", reference=f"Hm {LOIRE}"), [y("c", "Hi", LOIRE)]) is None


def test_own_text_that_comes_twice_is_own_both_times() -> None:
    stem = "Read the following passage carefully and answer the question below it."
    text = f"Passage. {stem} Hm. {stem} Yes."
    assert find_donor(x(text, f"{stem} A?"), [y("c", f"{stem} B?")]) is None


def test_a_template_of_several_items_names_nobody() -> None:
    stem = "Read the following passage carefully and answer the question below it."
    companions = [y("a", f"{stem} Who ran?"), y("b", f"{stem} Who slept?")]
    assert find_donor(x(f"Etna. {stem} Hm."), companions) is None
    # With one of them in flight the others of the work-set tell that it is a template.
    assert find_donor(x(f"Etna. {stem} Hm."), companions[:1], companions[1:]) is None
    assert only(find_donor(x(f"Etna. {stem} Hm."), companions[:1])).id == "a"


def test_a_system_prompt_of_several_items_names_nobody() -> None:
    system = Message("system", "You are the helpful assistant of a small travel agency in Kent.")
    companions = [CompanionText(n, (system, *user(f"Say {n}")), None) for n in ("a", "b")]
    assert find_donor(x(f"Etna. {system.content}"), companions) is None


def test_a_stock_answer_of_several_items_names_nobody() -> None:
    stock = (
        "I am sorry, but as a language model I do not have access to current information, so I "
        "cannot tell you the weather, the news or the price of any product or service today."
    )
    companions = [y("a", "Will it rain?", stock), y("b", "What costs gold?", stock)]
    assert find_donor(x(stock), companions) is None
    assert find_donor(x(f"Well. {stock}"), companions) is None
    assert find_donor(x(f"Well. {stock}"), companions[:1], companions[1:]) is None


def test_like_questions_have_like_answers() -> None:
    paraphrase = y("c", "Please, which river of France is the longest one?", LOIRE)
    subject = DivergentText(LOIRE, user("Which river is the longest one of France?"), "The Nile.")
    assert find_donor(subject, [paraphrase]) is None
    assert find_donor(dataclasses.replace(subject, text=f"So: {LOIRE}"), [paraphrase]) is None


def test_a_shared_system_prompt_does_not_make_questions_alike() -> None:
    system = Message("system", "You are the helpful assistant of a small travel agency in Kent.")
    companion = CompanionText("c", (system, *user("Which is long?")), LOIRE)
    subject = DivergentText(f"So. {LOIRE}", (system, *user("Name a mountain.")), "Etna.")
    assert only(find_donor(subject, [companion])).kind is DonorKind.ANSWER


def test_a_model_that_makes_up_prompts_is_not_accused() -> None:
    items = [y(f"q{i}", f"What is the capital of country number {i}?") for i in range(9)]
    own = items.pop(0)
    text = " ".join(item.messages[0].content for item in items[:4])
    subject = DivergentText(text, own.messages, "Rome.")
    assert find_donor(subject, items[:3], items[3:]) is None
    one = dataclasses.replace(subject, text=f"Rome. {items[0].messages[0].content}")
    assert only(find_donor(one, items[:3], items[3:])).id == "q1"
    by_itself = dataclasses.replace(one, reference=items[7].messages[0].content)
    assert find_donor(by_itself, items[:3], items[3:]) is None


def test_an_identical_prompt_is_no_donor() -> None:
    assert find_donor(x(f"Etna {LETTER}", LETTER, "Yes."), [y("same", LETTER, LOIRE)]) is None
    assert find_donor(x(LOIRE, LETTER, "Yes."), [y("same", LETTER, LOIRE)]) is None


@pytest.mark.parametrize("text", ["", " ", "Etna", "\ud800", "\0", "🙂" * 300])
def test_there_may_be_nothing_to_find(text: str) -> None:
    for companions in ([], [y("a", "", "")], [y("a", LETTER, None)]):
        assert find_donor(x(text), companions) is None
        assert find_donor(DivergentText(text, (), None), companions) is None


# Its form and its cost.


def test_the_find_holds_no_text_and_travels_as_json() -> None:
    found = find_donor(x(f"Etna {LETTER}"), [y("mail", LETTER)])
    assert found is not None
    data = to_json(found)
    donor = {"id": "mail", "kind": "prompt", "n_chars": len(LETTER), "start": 5}
    assert data == {"donors": [donor]}
    assert from_json(Contamination, data, "contamination") == found


def _noise(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("abcdefghij klmnop qrst uvwxyz") for _ in range(n))


def test_a_megabyte_takes_no_more_than_its_share() -> None:
    rng = random.Random(5)
    own, foreign = _noise(rng, 1 << 20), _noise(rng, 1 << 20)
    text = own + LETTER
    companions = [y("mail", f"{foreign} {LETTER}", foreign), y("rep", "ab" * 500_000, own[:-9])]
    start = time.process_time()
    donor = only(find_donor(DivergentText(text, user("Go on."), own), companions))
    assert donor.id == "mail"
    assert donor.start + donor.n_chars == len(text)
    repeating = DivergentText("ab " * 350_000, user("Go on."), None)
    assert find_donor(repeating, [*companions, y("rep2", "ab " * 350_000)]) is None
    # Quadratic work would take hours.
    assert time.process_time() - start < 60


def test_what_begins_beyond_the_searched_part_is_not_looked_at() -> None:
    rng = random.Random(6)
    part = "my landlord that the boiler in Hazel Street"
    text = _noise(rng, SEARCHED_CHARACTERS) + part
    assert find_donor(x(text), [y("mail", LETTER)]) is None
    assert only(find_donor(x(text[:9_000] + part), [y("mail", LETTER)])).id == "mail"
    assert only(find_donor(x(text + f" {LETTER}"), [y("mail", LETTER)])).id == "mail"


def test_runs_are_all_found_from_their_least_length_on() -> None:
    rng = random.Random(7)
    for _ in range(200):
        n = GRAM + STEP - 1 + rng.randrange(90)
        run = _noise(rng, n)
        a = _noise(rng, rng.randrange(60)) + "#" + run + "%" + _noise(rng, rng.randrange(60))
        b = _noise(rng, rng.randrange(60)) + "!" + run + "?" + _noise(rng, rng.randrange(60))
        at = a.index("#") + 1
        assert range(at, at + n) in list(shared_runs(window_of(a, 0, len(a)), b))


def test_the_common_length_is_that_of_a_plain_comparison() -> None:
    rng = random.Random(8)
    for _ in range(500):
        a = "".join(rng.choice("ab") for _ in range(rng.randrange(12)))
        stem = "ab" * rng.randrange(120)
        b = "".join(rng.choice("ab") for _ in range(rng.randrange(12)))
        left, right = stem + a, stem + b
        plain = next(
            (i for i, (u, v) in enumerate(zip(left, right, strict=False)) if u != v),
            min(len(left), len(right)),
        )
        assert common_length(left, right) == plain


def test_what_is_taken_out_of_a_run_leaves_a_gap() -> None:
    window = window_of("0123456789abcdefghijklmnop", 0, 26)
    assert without(window, range(26), {"456789abcdef"}) == "0123" + " " * 12 + "ghijklmnop"
    assert without(window, range(6, 20), {"456789abcdef"}) == "6789abcdefghij"


def test_texts_that_a_faulty_server_mixed_name_the_donor(tmp_path: Path) -> None:
    """The fake that puts another prompt's text into an answer at three in flight."""
    outcome = light_cell(tmp_path, mix_donor_at=3).run("--parallel", 4)
    header = outcome.records()[0]
    assert isinstance(header, Header)
    items = header.workset.items
    asked = {item.id: item.messages[0].content for item in items}
    answers: dict[int, str] = {}
    named = []
    for trial in outcome.trials():
        assert isinstance(trial.result, Completion)
        at, text = trial.key.item, trial.result.text
        if trial.key.arm is Arm.A:
            answers[at] = text
        elif trial.key.arm is Arm.C and text != answers[at]:
            others = [
                CompanionText(item.id, item.messages, answers[i])
                for i, item in enumerate(items)
                if i != at
            ]
            subject = DivergentText(text, items[at].messages, answers[at])
            donor = only(find_donor(subject, others))
            assert donor.kind is DonorKind.PROMPT
            assert text[donor.start : donor.start + donor.n_chars] == asked[donor.id]
            named.append(trial.item_id)
    assert len(set(named)) >= 4
