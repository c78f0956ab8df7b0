"""Counts of speculation, as users of other engines met them."""

import pytest
from answers import OFF, ask, ask_all, check_equal, drafts
from cases import (
    HA,
    HALF_SMILE,
    ONE,
    OTHER_HALF,
)
from conftest import TABLE
from observed import is_idle, metrics, soon
from processes import Processes, Stack
from real_tokenizers import smollm2_tokenizer, table_tokenizer

from paceline.engine.table_model import EOS_ID

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("drafter", ["suffix", "draft-model", "self"])
async def test_what_is_counted_adds_up(table_stack: Stack, drafter: str) -> None:
    """CASES 46."""
    coordinator = table_stack.coordinator
    await soon(lambda: is_idle(coordinator), "nothing else runs")
    before = await metrics(coordinator)
    bodies = [
        {"prompt": f"{number} to be or not to be", "seed": number, "max_tokens": 40}
        for number in range(12)
    ]
    # Stops inside of blocks: what is drafted and accepted behind them belongs to no answer.
    bodies += [{**body, "stop": ["e"]} for body in bodies]
    requests = [{**body, "speculation": drafts(drafter, 4)} for body in bodies]
    answers = await ask_all(coordinator, requests, concurrency=4)
    await soon(lambda: is_idle(coordinator), "all gauges are back at 0")
    after = await metrics(coordinator)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    counters = [name for name in before if name.endswith("_total")]
    assert [name for name in counters if grown[name] < 0] == []

    num_steps = grown["spec_decode_num_drafts_total"]
    num_drafts = grown["spec_decode_num_draft_tokens_total"]
    num_accepted = grown["spec_decode_num_accepted_tokens_total"]
    num_emitted = grown["generation_tokens_total"]
    assert 0 < num_accepted <= num_drafts <= 4 * num_steps
    assert num_emitted == sum(answer.num_completion_tokens for answer in answers)
    assert num_emitted == sum(len(answer.token_ids) for answer in answers)
    assert num_emitted <= grown["target_tokens_total"]
    num_passes = grown["target_passes_total"]
    # Each pass adds a token of the target's own, except behind an end that was drafted.
    num_ended = sum(answer.token_ids[-1] == EOS_ID for answer in answers)
    num_committed = grown["target_tokens_total"]
    assert num_passes + num_accepted - num_ended <= num_committed <= num_passes + num_accepted
    by_place = [
        grown.get(f"spec_decode_num_accepted_tokens_per_pos_total:{place}", 0.0)
        for place in range(5)
    ]
    assert by_place == sorted(by_place, reverse=True)
    assert by_place[4] == 0
    assert sum(by_place) == num_accepted
    for name, total in (
        ("num_draft_tokens", num_drafts),
        ("num_accepted_draft_tokens", num_accepted),
        ("num_spec_steps", num_steps),
        ("num_target_passes", num_passes),
    ):
        assert sum(answer.speculation[name] for answer in answers) == total
    if drafter == "self":
        assert num_accepted == num_drafts
    else:
        assert num_accepted < num_drafts


async def test_drafts_from_an_unrelated_model_are_hardly_ever_accepted(
    processes: Processes, table_stack: Stack
) -> None:
    """CASES 46: acceptance is counted and not assumed."""
    draft = processes.draft("draft-model", model=f"{TABLE}:1")
    stack = processes.stack(table_stack.target, {"draft-model": draft})
    body = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 100}
    plain = await ask(table_stack.coordinator, {**body, "speculation": OFF})
    answer = await ask(stack.coordinator, {**body, "speculation": drafts("draft-model", 4)})
    check_equal(answer, plain, "with an unrelated draft")
    assert answer.speculation["draft_acceptance_rate"] < 0.25
    stack.coordinator.stop()
    draft.stop()


def test_the_tokens_named_here_are_what_they_are_said_to_be() -> None:
    """CASES 0.3."""
    tokenizer = smollm2_tokenizer()
    assert tokenizer.encode(" ha") == (HA,)
    assert tokenizer.encode("1") == (ONE,)
    assert tokenizer.encode("🙂") == (HALF_SMILE, OTHER_HALF)
    assert table_tokenizer().encode("x")[-1] == ord("x")
