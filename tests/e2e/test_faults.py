"""Whatever dies, stops or leaves in the middle of an answer, the answer stays what it was.

Real processes and real signals. The table model stands in for a large one except where a draft with
weights is lost; drafts are asked for by name, so that a lost draft is missed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from answers import (
    OFF,
    Body,
    ask,
    check_equal,
    drafts,
    events,
    post,
)
from conftest import KV_CACHE_TOKENS, TABLE
from faults import FAULT_AT, GREEDY, SEEDED, ask_with_fault, in_the_middle, standing_still
from observed import SOON_S, is_complete, is_idle, metrics, soon, status
from processes import Processes, Stack, Worker
from redis_server import ManagedRedis

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def redis() -> Iterator[ManagedRedis]:
    with ManagedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def module_stack(processes: Processes, redis: ManagedRedis) -> Iterator[Stack]:
    workers = {
        "draft-model": processes.draft("draft-model", model=f"{TABLE}:0.2"),
        "suffix": processes.draft("suffix"),
    }
    stack = processes.stack(processes.target(model=TABLE), workers, redis.url)
    yield stack
    for service in (stack.coordinator, *stack.workers):
        service.stop()


@pytest.fixture
async def stack(module_stack: Stack) -> AsyncIterator[Stack]:
    """A whole service of the table model; what a test broke is mended behind it."""
    yield module_stack
    for worker in module_stack.workers:
        if worker.child.has_ended:
            worker.start_again()
            worker.wait_ready()
    await soon(lambda: is_complete(module_stack.coordinator), "all workers are back")


@pytest.mark.parametrize("body", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("drafter", ["draft-model", "suffix"])
async def test_a_draft_killed_in_mid_stream_changes_nothing(
    stack: Stack, drafter: str, body: Body
) -> None:
    coordinator, draft = stack.coordinator, stack.drafts[drafter]
    plain = await ask(coordinator, {**body, "speculation": OFF})
    request = {**body, "speculation": drafts(drafter, 4)}
    fault = in_the_middle(coordinator, draft.kill, stack.target)
    answer = await ask_with_fault([coordinator.grpc_address], request, FAULT_AT, fault)
    check_equal(answer, plain, f"after the {drafter} draft was killed")
    assert answer.speculation["num_draft_tokens"] > 0


async def test_a_draft_stopped_in_mid_stream_and_continued_changes_nothing(stack: Stack) -> None:
    coordinator, draft = stack.coordinator, stack.drafts["draft-model"]
    body = {**SEEDED, "max_tokens": 200}
    plain = await ask(coordinator, {**body, "speculation": OFF})
    request = {**body, "speculation": drafts("draft-model", 4)}
    fault = in_the_middle(coordinator, draft.pause, stack.target)
    try:
        answer = await ask_with_fault([coordinator.grpc_address], request, FAULT_AT, fault)
        check_equal(answer, plain, "after the draft was stopped")
    finally:
        draft.resume()
    # It then answers what it was asked long ago, to which nobody listens any more.
    await soon(lambda: is_complete(coordinator), "the draft is back")
    again = await ask(coordinator, request)
    check_equal(again, plain, "after the draft was continued")


@pytest.fixture(scope="module")
def model_pair(
    processes: Processes, model_workers: dict[str, Worker], draft_checkpoint: Path
) -> Iterator[Stack]:
    """The default model with a draft that a test may lose."""
    draft = processes.draft(
        "draft-model", model=str(draft_checkpoint), kv_cache_tokens=KV_CACHE_TOKENS
    )
    stack = processes.stack(model_workers["target"], {"draft-model": draft})
    yield stack
    stack.coordinator.stop()
    draft.kill()


# The one behind which it does not come back is last.
@pytest.mark.parametrize("signal_name", ["pause", "kill"])
async def test_a_draft_with_weights_lost_in_mid_stream_changes_nothing(
    model_pair: Stack, signal_name: str
) -> None:
    coordinator, draft = model_pair.coordinator, model_pair.drafts["draft-model"]
    request: Body = {
        "messages": [{"role": "user", "content": "Count from one to thirty in words."}],
        "temperature": 0.8,
        "seed": 3,
        "max_tokens": 40,
    }
    await soon(lambda: is_complete(coordinator), "the draft is there")
    try:
        plain = await ask(coordinator, {**request, "speculation": OFF})
        request["speculation"] = drafts("draft-model", 3)
        fault = in_the_middle(coordinator, getattr(draft, signal_name))
        answer = await ask_with_fault([coordinator.grpc_address], request, 12, fault)
        check_equal(answer, plain, f"after {signal_name} of the draft")
        assert answer.speculation["num_draft_tokens"] > 0
    finally:
        draft.resume()


@pytest.mark.parametrize("speculation", [OFF, drafts("draft-model", 4)], ids=["off", "drafts"])
async def test_a_target_killed_and_started_again_in_mid_stream_loses_no_token(
    stack: Stack, speculation: Body
) -> None:
    coordinator, target = stack.coordinator, stack.target
    plain = await ask(coordinator, {**SEEDED, "speculation": OFF})

    def restart() -> None:
        target.kill()
        target.start_again()

    request = {**SEEDED, "speculation": speculation}
    fault = in_the_middle(coordinator, restart)
    answer = await ask_with_fault([coordinator.grpc_address], request, FAULT_AT, fault)
    check_equal(answer, plain, "after the target was started again")


async def test_a_target_killed_in_mid_stream_is_replaced_by_another(
    stack: Stack, processes: Processes
) -> None:
    others = [processes.target(model=TABLE) for _ in range(2)]
    for other in others:
        other.wait_ready()
    coordinator = processes.coordinator(others, list(stack.drafts.values()))
    coordinator.wait_ready()
    await soon(lambda: is_complete(coordinator), "all workers are connected")
    plain = await ask(stack.coordinator, {**GREEDY, "speculation": OFF})

    def kill_the_busy_one() -> None:
        workers = coordinator.read_status()["workers"]
        busy = {worker["address"] for worker in workers if worker["num_sequences"]}
        (target,) = [other for other in others if other.address in busy]
        target.kill()

    fault = in_the_middle(coordinator, kill_the_busy_one)
    request = {**GREEDY, "speculation": drafts("draft-model", 4)}
    answer = await ask_with_fault([coordinator.grpc_address], request, FAULT_AT, fault)
    check_equal(answer, plain, "at the other target")
    coordinator.stop()
    for other in others:
        other.kill()


@pytest.mark.long
async def test_an_answer_whose_target_stays_away_ends_with_an_error_and_not_as_if_complete(
    stack: Stack,
) -> None:
    """CASES 26. The error comes when waiting for another target has been given up."""
    seen = []
    request = {**GREEDY, "return_token_ids": True}
    async with aclosing(events(stack.coordinator, request)) as stream:
        async for event in stream:
            seen.append(event)
            if len(seen) == 20:
                stack.target.kill()
    assert '"service_unavailable"' in seen[-1]
    assert not any('"finish_reason":"' in event or event == "[DONE]" for event in seen)
    found = await status(stack.coordinator)
    assert not found["ready"]
    assert stack.target.address in found["reason"]


async def test_the_loss_of_redis_in_mid_stream_changes_nothing_and_is_reported(
    stack: Stack, redis: ManagedRedis
) -> None:
    coordinator = stack.coordinator
    plain = await ask(coordinator, {**SEEDED, "speculation": OFF})
    request = {**SEEDED, "speculation": drafts("draft-model", 4)}
    fault = in_the_middle(coordinator, redis.kill, stack.target)
    answer = await ask_with_fault([coordinator.grpc_address], request, FAULT_AT, fault)
    check_equal(answer, plain, "after Redis was killed")

    async def is_degraded() -> bool:
        return (await metrics(coordinator))["session_store_degraded"] == 1

    await soon(is_degraded, "the loss of Redis is in the metrics")
    response = await post(coordinator, {**SEEDED, "max_tokens": 4})
    assert response.status_code == 200
    assert response.headers["x-paceline-session-store"] == "memory"
    assert "in memory" in (await status(coordinator))["session_store"]

    redis.start()

    async def is_whole() -> bool:
        return (await status(coordinator))["session_store"] == "redis"

    await soon(is_whole, "Redis is in use again")


@pytest.mark.parametrize("body", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_another_coordinator_goes_on_where_a_killed_one_was(
    stack: Stack, processes: Processes, redis: ManagedRedis, body: Body
) -> None:
    workers = ([stack.target], list(stack.drafts.values()))
    first = processes.coordinator(*workers, redis.url)
    first.wait_ready()
    request = {**body, "speculation": drafts("draft-model", 4)}
    plain = await ask(stack.coordinator, {**body, "speculation": OFF})
    addresses = [first.grpc_address, stack.coordinator.grpc_address]
    before = await metrics(stack.coordinator)
    is_running = in_the_middle(first, lambda: None)

    def kill() -> None:
        with standing_still(stack.target):
            is_running()
            first.kill()

    answer = await ask_with_fault(addresses, request, FAULT_AT, kill)
    check_equal(answer, plain, "from two coordinators")
    after = await metrics(stack.coordinator)
    num_tokens = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert 0 < num_tokens < len(plain.token_ids), "the other one made the rest, and only that"
    await soon(lambda: is_idle(stack.coordinator), "the workers have closed all sequences")


async def test_a_coordinator_that_is_told_to_stop_completes_its_answers_first(
    stack: Stack, processes: Processes
) -> None:
    coordinator = processes.coordinator([stack.target], [])
    coordinator.wait_ready()
    plain = await ask(stack.coordinator, {**GREEDY, "speculation": OFF})
    fault = in_the_middle(coordinator, coordinator.child.process.terminate, stack.target)
    answer = await ask_with_fault([coordinator.grpc_address], GREEDY, FAULT_AT, fault)
    check_equal(answer, plain, "while the coordinator was stopping")
    assert await asyncio.to_thread(coordinator.child.process.wait, SOON_S) == 0
