"""A service whose pods come and go as Kubernetes lets them, and clients that ask it all the time.

Pods are processes of ours, known to the coordinator through the EndpointSlices of an API server of
our own. Clients compare every answer with the one that the table model gives without drafts.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from answers import (
    OFF,
    Addresses,
    Answer,
    Body,
    FrontEnd,
    ask,
    ask_all,
    ask_grpc,
    check_equal,
    drafts,
)
from kubernetes_api import KubernetesApi
from observed import soon, status
from processes import Coordinator, Processes, Worker

TARGETS = "kubernetes://target"
DRAFTS = "kubernetes://?selector=app.kubernetes.io/component=draft"
NUM_CLIENTS = 4
ENOUGH_ANSWERS = 3 * NUM_CLIENTS
"""Answers begun and ended before the next thing happens."""
PHASE_TIMEOUT_S = 300.0
FRONT_ENDS = (FrontEnd.HTTP, FrontEnd.HTTP_STREAM, FrontEnd.GRPC)


class Tiers(Protocol):
    """What there is."""

    @property
    def targets(self) -> Sequence[object]:
        """One for each."""

    @property
    def drafts(self) -> Sequence[object]:
        """One for each."""


QUESTIONS: list[Body] = [
    {
        "prompt": f"Tell number {index}:",
        "ignore_eos": True,
        "max_tokens": 120,
        "temperature": (0, 0.8)[index % 2],
        "seed": index,
        # By name and number: against a table, whose passes cost nothing, drafts would not pay.
        "speculation": drafts("draft-model", 3),
    }
    for index in range(6)
]
"""For a table with drafts of another one."""


class Pods:
    """The workers that there are."""

    def __init__(self, processes: Processes, api: KubernetesApi) -> None:
        self._processes = processes
        self._api = api
        self.targets: list[Worker] = []
        self.drafts: list[Worker] = []

    def start_target(self, **settings: Any) -> Worker:
        """Start the process of a target that may be added later."""
        return self._processes.target(**settings)

    def start_draft(self, drafter: str, **settings: Any) -> Worker:
        """The same of a draft."""
        return self._processes.draft(drafter, **settings)

    async def add(self, *workers: Worker) -> None:
        """Let them be pods of their Services: not ready until they say that they are."""
        for worker in workers:
            self._put(worker, ready=False)
            self._tier(worker).append(worker)
        for worker in workers:
            await asyncio.to_thread(worker.wait_ready)
            self._put(worker, ready=True)

    async def remove(self, worker: Worker) -> None:
        """As when a pod is deleted: terminating, told so, gone; it must end in order."""
        self._put(worker, ready=False, serving=True, terminating=True)
        worker.child.process.terminate()
        assert await asyncio.to_thread(worker.child.process.wait, 60) == 0, worker.spec.name
        worker.supervisor.find_dead()  # meant to be dead
        self._api.delete_pod(worker.role, worker.address)
        self._tier(worker).remove(worker)

    async def until_seen(self, coordinator: Coordinator) -> None:
        """Wait until a coordinator has exactly these, all ready."""

        async def sees_all() -> bool:
            seen = (await status(coordinator))["workers"]
            ready = {worker["address"] for worker in seen if worker["ready"]}
            expected = {worker.address for worker in (*self.targets, *self.drafts)}
            return ready == expected and len(seen) == len(expected)

        await soon(sees_all, "the coordinator sees the pods that there are")

    def _tier(self, worker: Worker) -> list[Worker]:
        return self.targets if worker.role == "target" else self.drafts

    def _put(self, worker: Worker, **conditions: bool) -> None:
        labels = {"app.kubernetes.io/component": worker.role}
        self._api.put_pod(worker.role, worker.address, labels=labels, **conditions)


@dataclass(frozen=True)
class Phase:
    """What clients saw while nothing changed."""

    what: str
    num_targets: int
    num_drafts: int
    answers: Sequence[Answer]
    """Those that were asked for meanwhile."""
    tokens_per_s: float
    """Of all answers that ended meanwhile, together."""

    @property
    def num_accepted(self) -> int:
        """Drafts accepted in all answers."""
        return sum(
            int(answer.speculation.get("num_accepted_draft_tokens", 0)) for answer in self.answers
        )

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass of the target brought, in all answers."""
        committed, passes = (
            sum(int(answer.speculation.get(name, 0)) for answer in self.answers)
            for name in ("num_committed_tokens", "num_target_passes")
        )
        return committed / passes


@dataclass(frozen=True)
class _Answered:
    asked: float
    ended: float
    answer: Answer


@dataclass
class Load:
    """Clients that ask all the time; any failure or other text ends the test."""

    coordinators: list[Addresses]
    """Who is asked, the first one over HTTP; gRPC clients know all of them."""
    questions: Sequence[tuple[Body, Answer]]
    front_ends: Sequence[FrontEnd] = FRONT_ENDS
    num_answers: int = ENOUGH_ANSWERS
    """Of a phase, at least."""
    _answers: list[_Answered] = field(default_factory=list)
    _is_over: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask until left; what was asked last is answered before."""
        turns = itertools.count()
        async with asyncio.TaskGroup() as clients:
            for _ in range(NUM_CLIENTS):
                clients.create_task(self._ask_on(turns))
            try:
                yield
            finally:
                self._is_over = True

    async def phase(self, what: str, pods: Tiers) -> Phase:
        """Let the clients ask for a while, and say what they saw."""
        start = time.monotonic()

        def seen() -> list[Answer]:
            return [answered.answer for answered in self._answers if answered.asked >= start]

        async def is_enough() -> bool:
            return len(seen()) >= self.num_answers

        await soon(is_enough, f"{self.num_answers} answers {what}", PHASE_TIMEOUT_S)
        ended = [answered.answer for answered in self._answers if answered.ended >= start]
        num_tokens = sum(answer.num_completion_tokens for answer in ended)
        tokens_per_s = num_tokens / (time.monotonic() - start)
        return Phase(what, len(pods.targets), len(pods.drafts), seen(), tokens_per_s)

    async def _ask_on(self, turns: "itertools.count[int]") -> None:
        while not self._is_over:
            turn = next(turns)
            body, expected = self.questions[turn % len(self.questions)]
            front_end = self.front_ends[turn % len(self.front_ends)]
            asked = time.monotonic()
            if front_end is FrontEnd.GRPC:
                addresses = [coordinator.grpc_address for coordinator in self.coordinators]
                answer = await ask_grpc(addresses, body)
            else:
                answer = await ask(self.coordinators[0], body, front_end)
            check_equal(answer, expected, f"{body} by {front_end.value}")
            self._answers.append(_Answered(asked, time.monotonic(), answer))


async def plain_answers(
    coordinator: Addresses, bodies: Sequence[Body]
) -> list[tuple[Body, Answer]]:
    """Each with what the target says to it by itself."""
    plain = [{**body, "speculation": OFF} for body in bodies]
    return list(zip(bodies, await ask_all(coordinator, plain, NUM_CLIENTS), strict=True))
