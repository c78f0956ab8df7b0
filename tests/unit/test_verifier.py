"""What the verifier commits is the table model's own text, however it was cut and batched."""

from dataclasses import replace

import numpy as np
import pytest
from plain_text import plain_text
from sequence_owner import GREEDY, LAW, PROMPT, SEEDED, VOCAB_SIZE, Owner, new_verifier, widths

from paceline.rounds import SequenceSettings


@pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_right_drafts_are_accepted_and_wrong_ones_replaced(settings: SequenceSettings) -> None:
    owner = Owner(new_verifier(), settings=settings)
    expected = owner.expected
    first = owner.ask(expected[:3])
    assert (first.num_draft_tokens, first.num_accepted_tokens, owner.said) == (3, 3, expected[:4])
    wrong = [expected[4], (expected[5] + 1) % VOCAB_SIZE, expected[6]]
    second = owner.ask(wrong, start=len(owner.log))
    assert (second.num_draft_tokens, second.num_accepted_tokens) == (3, 1)
    assert owner.said == expected[:6]
    assert widths(owner.verifier)[1] == [4], "one row for the last token, one for each draft"


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 512])
def test_a_long_prompt_in_chunks_of_any_size_says_the_same(chunk: int) -> None:
    prompt = list(np.random.default_rng(1).integers(0, VOCAB_SIZE, 150))
    settings = replace(SEEDED, max_length=160)
    owner = Owner(new_verifier(chunk), [int(id) for id in prompt], settings)
    owner.ask(plain_text(LAW, owner.prompt, settings)[:4])
    assert owner.said == owner.expected[:5]
    assert max(max(width) for width in widths(owner.verifier)) <= max(chunk, 32 + 4)
    assert sum(sum(width) for width in widths(owner.verifier)) == 154, "no token is run twice"


def test_a_long_prompt_does_not_hold_up_those_who_decode() -> None:
    verifier = new_verifier(max_batch_tokens=64)
    decoding = Owner(verifier)
    decoding.ask()
    newcomer = Owner(verifier, [1, 2] * 50, replace(GREEDY, max_length=110), "b")
    assert newcomer.send() is None
    while newcomer.said == []:
        assert decoding.send(start=len(decoding.log)) is None
        for result in verifier.step() or []:
            (decoding if result.sequence_id == "a" else newcomer).hear(result)
    prefill = widths(verifier)[1:]
    assert all(width[0] == 1 and width[1] <= 32 for width in prefill)
    assert newcomer.said == newcomer.expected[:1]
    assert decoding.said == decoding.expected[: len(decoding.said)]


def test_a_prefill_that_can_be_found_by_content_is_not_run_again() -> None:
    verifier = new_verifier()
    prompt = [1, 2, 3, 4] * 20
    settings = replace(GREEDY, max_length=100)
    Owner(verifier, prompt, settings).ask()
    other = Owner(verifier, prompt, settings, "b")
    other.ask()
    assert widths(verifier) == [[80], [16]]
    assert other.said == other.expected[:1]


@pytest.mark.parametrize("num_new", [1, 3, 8])
def test_the_target_goes_on_alone_one_token_a_pass(num_new: int) -> None:
    owner = Owner(new_verifier(), settings=SEEDED)
    assert owner.send(max_new_tokens=num_new) is None
    for index in range(num_new):
        (result,) = owner.verifier.step() or []
        owner.hear(result)
        assert len(result.token_ids) == 1
        assert result.last is (index == num_new - 1)
        assert result.round == 1
    assert owner.said == owner.expected[:num_new]
    assert not owner.verifier.has_work


def test_going_on_alone_behind_drafts_counts_all_tokens_of_the_round() -> None:
    owner = Owner(new_verifier())
    owner.ask(owner.expected[:2], max_new_tokens=6)
    assert owner.said == owner.expected[:6]
    assert widths(owner.verifier) == [[7], [1], [1], [1]]


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 8])
@pytest.mark.parametrize("settings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_budget_is_met_exactly_wherever_it_falls_in_a_block(
    num_drafts: int, settings: SequenceSettings
) -> None:
    text = plain_text(LAW, PROMPT, settings)
    for budget in range(1, 2 * num_drafts + 4):
        owner = Owner(new_verifier(), settings=replace(settings, max_length=len(PROMPT) + budget))
        start = 0
        while len(owner.said) < budget:
            owner.ask(text[len(owner.said) :][:num_drafts], start)
            start = len(owner.log)
        assert owner.said == text[:budget]


def test_nothing_is_committed_behind_a_stop_token_inside_an_accepted_block() -> None:
    text = plain_text(LAW, PROMPT, SEEDED)
    stop = next(id for index, id in enumerate(text) if index > 1 and id not in text[:index])
    owner = Owner(new_verifier(), settings=replace(SEEDED, stop_token_ids=(stop,)))
    result = owner.ask(text[:8], max_new_tokens=20)
    assert owner.said == text[: text.index(stop) + 1] == owner.expected
    assert result.last


def test_more_drafts_than_the_worker_checks_are_trimmed() -> None:
    owner = Owner(new_verifier(max_speculative_tokens=3))
    result = owner.ask(owner.expected[:8])
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (3, 3)
    assert owner.said == owner.expected[:4]


def test_more_drafts_than_fit_in_a_pass_are_checked_all_the_same() -> None:
    owner = Owner(new_verifier(max_batch_tokens=16, max_speculative_tokens=40))
    owner.settings = replace(GREEDY, max_length=100)
    owner.ask(owner.expected[:40])
    assert owner.said == owner.expected[:41]


@pytest.mark.parametrize("nonsense", [VOCAB_SIZE, 2**32 - 1])
def test_a_draft_that_is_no_token_counts_as_rejected(nonsense: int) -> None:
    owner = Owner(new_verifier())
    first, *_ = owner.expected
    result = owner.ask([first, nonsense, first])
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (2, 1)
    assert owner.said == owner.expected[:2]


def test_a_newer_round_of_a_sequence_replaces_the_waiting_one() -> None:
    owner = Owner(new_verifier())
    assert owner.send(max_new_tokens=9) is None
    assert owner.send() is None
    (result,) = owner.verifier.step() or []
    assert (result.round, result.last) == (2, True)
    assert not owner.verifier.has_work


def test_a_span_undoes_what_the_target_said_alone() -> None:
    owner = Owner(new_verifier())
    assert owner.send(max_new_tokens=5) is None
    for _ in range(5):
        assert owner.verifier.step()
    owner.log.token_ids.extend(owner.expected[:1])  # the caller heard of one token only
    owner.ask(start=len(owner.log), max_new_tokens=3)
    assert owner.said == owner.expected[:4]
