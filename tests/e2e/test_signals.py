"""Workers that are told to stop in the middle of an answer, as Kubernetes tells them."""

import asyncio
import signal

import pytest
from answers import ask, check_equal
from conftest import TABLE
from faults import GREEDY, ask_with_fault
from observed import SOON_S, is_complete, soon, status
from processes import Coordinator, Processes, Worker
from waiting import NEVER_S, wait_until

pytestmark = pytest.mark.timeout(900)

BODY = {**GREEDY, "max_tokens": 500}
FAULT_AT = 30


async def end_of(worker: Worker) -> int:
    """The status with which it ends by itself."""
    code = await asyncio.to_thread(worker.child.process.wait, SOON_S)
    worker.supervisor.find_dead()  # meant to be dead
    return code


def busy_one(coordinator: Coordinator, targets: list[Worker]) -> Worker:
    busy = {w["address"] for w in coordinator.read_status()["workers"] if w["num_sequences"]}
    (target,) = [target for target in targets if target.address in busy]
    return target


def ready_ones(coordinator: Coordinator) -> set[str]:
    workers = coordinator.read_status()["workers"]
    return {worker["address"] for worker in workers if worker["ready"]}


async def test_targets_leave_in_mid_answer_one_after_the_other_and_no_text_changes(
    processes: Processes,
) -> None:
    targets = [processes.target(model=TABLE, drain_seconds=0.5) for _ in range(2)]
    lasting = processes.target(model=TABLE, drain_seconds=NEVER_S)
    coordinator = processes.coordinator([*targets, lasting], [])
    coordinator.wait_ready()
    await soon(lambda: is_complete(coordinator), "all targets are connected")
    plain = await ask(coordinator, BODY)
    left = []

    def tell_the_busy_one() -> None:
        target = busy_one(coordinator, [*targets, lasting])
        left.append(target)
        target.child.process.terminate()
        wait_until(lambda: target.address not in ready_ones(coordinator))

    for _ in range(2):
        answer = await ask_with_fault([coordinator.grpc_address], BODY, FAULT_AT, tell_the_busy_one)
        check_equal(answer, plain, "while a target was leaving")
        assert await end_of(left[-1]) == 0
    assert left[0] is not left[1]
    coordinator.stop()
    for target in (*targets, lasting):
        if not target.child.has_ended:
            target.kill()


async def test_the_only_target_completes_its_answer_and_a_second_signal_ends_it_at_once(
    processes: Processes,
) -> None:
    target = processes.target(model=TABLE, drain_seconds=NEVER_S)
    coordinator = processes.coordinator([target], [], drain_seconds=NEVER_S)
    coordinator.wait_ready()
    plain = await ask(coordinator, BODY)
    answer = await ask_with_fault(
        [coordinator.grpc_address], BODY, FAULT_AT, target.child.process.terminate
    )
    check_equal(answer, plain, "while the only target was leaving")
    assert await end_of(target) == 0
    assert not (await status(coordinator))["ready"]

    target.start_again()
    target.wait_ready()
    await soon(lambda: is_complete(coordinator), "the target is back")
    asking = asyncio.create_task(ask(coordinator, {**BODY, "max_tokens": 4000}))

    async def has_begun() -> bool:
        return any(w["num_sequences"] for w in (await status(coordinator))["workers"])

    await soon(has_begun, "the answer is being made")
    target.child.process.terminate()
    # Two signals that are sent before the first one is heard are one.
    await asyncio.to_thread(wait_until, lambda: not ready_ones(coordinator))
    target.child.process.terminate()
    assert await end_of(target) == 128 + signal.SIGTERM
    asking.cancel()
    coordinator.stop()
