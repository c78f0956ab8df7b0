"""Sampling parameters where drafts are verified, as users of other engines met them."""

import pytest
from answers import OFF, Body, FrontEnd, ask, ask_all, check_equal, drafts
from cases import (
    HA,
    MODEL_MODES,
    MODES,
    ONE,
    SELDOM,
    ask_every_way,
    force,
)
from observed import metrics
from processes import Stack
from undisturbed import undisturbed_answer

pytestmark = pytest.mark.timeout(900)


async def test_a_bias_counts_for_drafted_tokens_too(model_stack: Stack) -> None:
    """CASES 13."""
    body = {"prompt": " ha" * 8, **force(ONE), "max_tokens": 12}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert answer.text == "1" * 12
    # Another token: of this one there are answers by now that could be copied.
    request = {**body, **force(SELDOM), "speculation": drafts("suffix", 4)}
    stream = await ask(model_stack.coordinator, request, FrontEnd.HTTP_STREAM)
    # Until the answer repeats itself, nothing that is copied can be accepted.
    assert [len(part.token_ids) for part in stream.parts[:2]] == [1, 1]


async def test_a_banned_token_never_appears_however_often_it_is_drafted(
    model_stack: Stack,
) -> None:
    """CASES 13."""
    body = {
        "prompt": " ha" * 8,
        "temperature": 0,
        "logit_bias": {str(HA): -100},
        "max_tokens": 24,
    }
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES, [FrontEnd.HTTP])
    assert HA not in answer.token_ids


async def test_a_first_draft_is_never_committed_unverified(model_stack: Stack) -> None:
    """CASES 14."""
    body = {"prompt": "A B C D A B C D A B C", **force(ONE), "max_tokens": 10}
    answer = await ask_every_way(model_stack.coordinator, body, MODEL_MODES)
    assert answer.text == "1" * 10


@pytest.mark.parametrize(
    "prompt",
    ["A B C D A B C D A B C", "1 2 3 1 2 3 1 2", "x = x + 1\n" * 4],
)
async def test_prompts_that_loop_go_on_as_without_drafts(model_stack: Stack, prompt: str) -> None:
    """CASES 14."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24}
    await ask_every_way(model_stack.coordinator, body, MODEL_MODES, [FrontEnd.HTTP])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-6},
        {"temperature": 1e-5},
        {"temperature": 1e-4},
        {"temperature": 1.7, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
    ],
    ids=str,
)
async def test_settings_that_leave_one_token_are_greedy_for_every_seed(
    table_stack: Stack, settings: Body
) -> None:
    """CASES 15."""
    body = {"prompt": "Once upon", "max_tokens": 24, "ignore_eos": True}
    greedy = await ask(table_stack.coordinator, {**body, "temperature": 0, "speculation": OFF})
    for seed in range(3):
        sampled = await ask_every_way(
            table_stack.coordinator, {**body, **settings, "seed": seed}, modes=MODES[2:]
        )
        check_equal(sampled, greedy, f"{settings} with seed {seed}")


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.0, "repetition_penalty": 1.4},
        {"frequency_penalty": -0.5, "logit_bias": {"101": -3, "116": -100}, "min_tokens": 40},
    ],
    ids=str,
)
async def test_penalties_count_for_drafts_as_for_the_target(
    table_stack: Stack, penalties: Body
) -> None:
    coordinator = table_stack.coordinator
    unlike = []
    for settings in ({"temperature": 0}, {"temperature": 1.0, "seed": 4}):
        body = {"prompt": "to be or not to be", "max_tokens": 60, **settings}
        plain = await ask(coordinator, body)
        penalized = await ask_every_way(coordinator, {**body, **penalties}, modes=MODES[2:])
        unlike.append(penalized.token_ids != plain.token_ids)
        asked = {**body, **penalties, "speculation": drafts("self", 5)}
        own = await undisturbed_answer(coordinator, asked)
        check_equal(own, penalized, f"{penalties} with the target's own model as the draft")
        figures = own.speculation
        assert figures["num_accepted_draft_tokens"] == figures["num_draft_tokens"] > 0
    assert any(unlike)


async def test_greedy_answers_stay_greedy_beside_sampled_ones(table_stack: Stack) -> None:
    """CASES 15."""
    coordinator = table_stack.coordinator
    common = {"prompt": "The king said", "max_tokens": 60, "ignore_eos": True}
    greedy = {**common, "temperature": 0}
    plain = await ask(coordinator, {**greedy, "speculation": OFF})
    before = await metrics(coordinator)
    for speculation in (OFF, *MODES):
        sampled = [{**common, "temperature": 1.0, "seed": seed} for seed in range(4)]
        bodies = [{**body, "speculation": speculation} for body in [greedy] * 4 + sampled]
        answers = await ask_all(coordinator, bodies, concurrency=8)
        for answer in answers[:4]:
            check_equal(answer, plain, f"greedy beside sampled, {speculation}")
        assert len({answer.token_ids for answer in answers[4:]}) == 4
    after = await metrics(coordinator)
    fallen = [name for name in before if name.endswith("_total") and after[name] < before[name]]
    assert fallen == []


@pytest.mark.parametrize("settings", [{}, {"top_k": 50}], ids=str)
async def test_answers_without_a_seed_are_as_various_with_drafts_as_without(
    table_stack: Stack, settings: Body
) -> None:
    """CASES 16."""
    num_distinct = []
    for speculation in (OFF, drafts("suffix", 4), drafts("draft-model", 4)):
        body = {"prompt": "Once upon a time", "max_tokens": 8, **settings}
        bodies = [{**body, "speculation": speculation}] * 40
        answers = await ask_all(table_stack.coordinator, bodies, concurrency=8)
        num_distinct.append(len({answer.token_ids for answer in answers}))
    plain, *others = num_distinct
    assert plain > 10
    assert all(0.7 * plain <= other <= 1.3 * plain for other in others), num_distinct
