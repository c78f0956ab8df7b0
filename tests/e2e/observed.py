"""What a running service says about itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from answers import http_client
from processes import Coordinator, Worker
from prometheus_client.parser import text_string_to_metric_families
from waiting import SOON_S

from paceline.channel import open_channel
from paceline.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from paceline.v1.tokens_pb2 import WorkerLoad


async def status(coordinator: Coordinator) -> dict[str, Any]:
    """The state of the service."""
    async with http_client(coordinator.url) as client:
        found: dict[str, Any] = (await client.get("/status")).json()
    return found


async def metrics(coordinator: Coordinator) -> dict[str, float]:
    """Counters and gauges by name, without `paceline_`; labels summed, and each by itself too."""
    async with http_client(coordinator.url) as client:
        text = (await client.get("/metrics")).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("paceline_")
            found[name] = found.get(name, 0.0) + sample.value
            for label in sample.labels.values():
                found[f"{name}:{label}"] = found.get(f"{name}:{label}", 0.0) + sample.value
    return found


async def load(worker: Worker) -> WorkerLoad:
    """The state of a worker, asked by a caller that has no sequences there."""
    async with open_channel(worker.address) as channel:
        # A worker reports whenever it is told of a sequence that has ended.
        if worker.role == "target":
            call = target_pb2_grpc.TargetServiceStub(channel).Verify()
            await call.write(target_pb2.VerifyRequest(closed_sequence_ids=["none"]))
        else:
            call = draft_pb2_grpc.DraftServiceStub(channel).Propose()
            await call.write(draft_pb2.ProposeRequest(closed_sequence_ids=["none"]))
        found: WorkerLoad = (await call.read()).load
        call.cancel()
    return found


async def is_idle(coordinator: Coordinator) -> bool:
    """Whether nothing is being answered, and no worker holds a sequence."""
    found = await status(coordinator)
    num_sequences = sum(worker["num_sequences"] for worker in found["workers"])
    gauge = (await metrics(coordinator))["num_requests_running"]
    return found["num_running"] == num_sequences == gauge == 0


async def is_complete(coordinator: Coordinator) -> bool:
    """Whether every worker is ready in the coordinator's eyes."""
    return all(worker["ready"] for worker in (await status(coordinator))["workers"])


async def soon(
    condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = SOON_S
) -> None:
    """Wait until something holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.05)
