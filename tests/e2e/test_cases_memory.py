"""KV rollback, reuse, preemption and leaks, as users of other engines met them."""

import pytest
from answers import OFF, Answer, Body, ask_all, check_equal, drafts, post
from cases import (
    MODES,
    ask_every_way,
)
from conftest import TABLE
from observed import is_idle, load, soon
from processes import Processes, Stack
from undisturbed import undisturbed_answer

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("drafter", ["draft-model", "self"])
async def test_a_hundred_requests_leave_nothing_behind_and_are_drafted_to_the_end(
    table_stack: Stack, drafter: str
) -> None:
    """CASES 34."""
    coordinator = table_stack.coordinator
    common = {"temperature": 0, "ignore_eos": True, "speculation": drafts(drafter, 4)}
    probe = {**common, "prompt": "the same every time", "max_tokens": 40}
    first = await undisturbed_answer(coordinator, probe)
    bodies = [
        {**common, "prompt": f"number {number}", "max_tokens": 1 + 7 * number % 40}
        for number in range(100)
    ]
    services = (table_stack.coordinator, table_stack.target, table_stack.drafts[drafter])
    answers = await ask_all(coordinator, bodies[:30], 4)
    resident_before = [service.resident_bytes for service in services]
    answers += await ask_all(coordinator, bodies[30:], 4)
    for service, before in zip(services, resident_before, strict=True):
        assert service.resident_bytes < 1.05 * before
    for answer, body in zip(answers, bodies, strict=True):
        assert answer.num_completion_tokens == body["max_tokens"]
    last = await undisturbed_answer(coordinator, probe)
    assert last.speculation["num_accepted_draft_tokens"] > 0
    for answer in (first, last):
        del answer.speculation["draft_compute_ms"]
    assert last.speculation == first.speculation
    await soon(lambda: is_idle(coordinator), "all sequences are gone")
    for worker in (table_stack.target, table_stack.drafts[drafter]):
        found = await load(worker)
        assert (found.num_sequences, found.num_waiting, found.kv_used) == (0, 0, 0)


@pytest.mark.parametrize("drafter", ["suffix", "hybrid"])
async def test_speculation_works_for_every_request_and_not_only_the_first(
    model_stack: Stack, drafter: str
) -> None:
    """CASES 35."""
    prompts = ["A B C D A B C D A B C", "1 2 3 4 1 2 3 4 1 2"]
    seen: dict[str, list[Answer]] = {prompt: [] for prompt in prompts}
    for prompt in [prompts[0]] * 3 + [prompts[1], prompts[0]] * 2:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 16}
        body["speculation"] = drafts(drafter, 4)
        seen[prompt].append(await undisturbed_answer(model_stack.coordinator, body))
    for answers in seen.values():
        for answer in answers:
            check_equal(answer, answers[0], "the same request again")
            assert answer.speculation["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("speculation", [OFF, *MODES[2:], drafts("self", 4)], ids=str)
async def test_preemption_for_lack_of_room_changes_nothing(
    processes: Processes, table_stack: Stack, small_stack: Stack, speculation: Body
) -> None:
    """CASES 36."""
    bodies = [
        {
            "prompt": f"{number} " + "round and round the rugged rock " * 2,
            "max_tokens": 96,
            "temperature": 1.0,
            "seed": number,
            "ignore_eos": True,
        }
        for number in range(6)
    ]
    plain = await ask_all(
        table_stack.coordinator, [{**body, "speculation": OFF} for body in bodies], 1
    )
    before = await load(small_stack.target)
    crowded = [{**body, "speculation": speculation} for body in bodies]
    answers = await ask_all(small_stack.coordinator, crowded, concurrency=6)
    for number, (answer, expected) in enumerate(zip(answers, plain, strict=True)):
        check_equal(answer, expected, f"request {number} in a pool that is too small")
    after = await load(small_stack.target)
    assert after.num_preemptions > before.num_preemptions
    await soon(lambda: is_idle(small_stack.coordinator), "all sequences are gone")


async def test_a_request_larger_than_the_pool_is_refused_with_the_limit(
    small_stack: Stack,
) -> None:
    """CASES 36."""
    body = {"prompt": "Once", "max_tokens": 400}
    response = await post(small_stack.coordinator, body)
    assert response.status_code == 400
    assert str(SMALL_POOL) in response.json()["error"]["message"]
    fits = {**body, "max_tokens": SMALL_POOL - 5, "ignore_eos": True, "temperature": 0}
    answer = await ask_every_way(small_stack.coordinator, fits, modes=MODES[2:])
    assert answer.num_completion_tokens == SMALL_POOL - 5


SMALL_POOL = 304
"""Tokens of KV room; the requests want three times as much together."""


@pytest.fixture(scope="module")
def small_stack(processes: Processes) -> Stack:
    """Target and drafts with room for one request and a part of another."""
    workers = {
        "suffix": processes.draft("suffix"),
        "draft-model": processes.draft(
            "draft-model", model=f"{TABLE}:0.2", kv_cache_tokens=SMALL_POOL
        ),
        "self": processes.draft("self", model=TABLE, kv_cache_tokens=SMALL_POOL),
    }
    target = processes.target(model=TABLE, kv_cache_tokens=SMALL_POOL)
    return processes.stack(target, workers)
