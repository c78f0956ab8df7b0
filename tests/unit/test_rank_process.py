"""The process of a rank that follows: its ports, its health, how it is stopped and how it ends."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import SOON_S, until

from paceline.channel import open_channel
from paceline.engine.device_worker import device_thread
from paceline.engine.ranks.place import RankPlace
from paceline.server import DEVICE_BROKEN, GrpcServer
from target_service import rank
from target_service.config import TargetSettings
from target_service.rank import built, follow, settings_of_rank

SECOND = RankPlace(1, 2, "127.0.0.1", 29500, local_size=2)
LOST = "rank 0 has ended"

RANK = """
import asyncio, sys, threading
from paceline.engine.device_worker import device_thread
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.logs import configure_logging
from paceline.server import GrpcServer
from target_service.rank import built, follow

class Follower:
    def __init__(self):
        self.asked = threading.Event()
    def run(self):
        if sys.argv[1] == "lost":
            raise GroupBroken("rank 0 has ended")
        if sys.argv[1] == "faulty":
            raise ZeroDivisionError("of a pass")
        print("follows", flush=True)
        self.asked.wait()
        print("asked", flush=True)
        if sys.argv[1] == "kept":
            threading.Event().wait()
    def ask_to_stop(self):
        self.asked.set()

def build():
    if sys.argv[1] == "alone":
        raise GroupBroken("rank 0 did not come")
    return Follower()

async def main():
    configure_logging("info", "text")
    place, thread = RankPlace(1, 2, "127.0.0.1", 29500), device_thread("device")
    server = GrpcServer("a.Service", None)
    await server.start("127.0.0.1", 0)
    await follow(place, await built(place, build, thread), server, thread)

asyncio.run(main())
"""


@contextmanager
def running(kind: str) -> "Iterator[subprocess.Popen[str]]":
    argv = [sys.executable, "-c", RANK, kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: "subprocess.Popen[str]", expected: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == expected


def test_a_rank_that_is_told_to_stop_asks_rank_0_and_ends_with_it() -> None:
    with running("willing") as process:
        hear(process, "follows")
        process.send_signal(signal.SIGTERM)
        hear(process, "asked")
        assert process.wait(SOON_S) == 0


def test_a_second_signal_ends_a_rank_at_once() -> None:
    with running("kept") as process:
        hear(process, "follows")
        process.send_signal(signal.SIGINT)
        hear(process, "asked")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("lost", "rank 0 has ended"),
        ("alone", "rank 0 did not come"),
        ("faulty", "ZeroDivisionError('of a pass')"),
    ],
)
def test_a_rank_that_cannot_go_on_ends_and_says_why(kind: str, reason: str) -> None:
    with running(kind) as process:
        _, errors = process.communicate(timeout=SOON_S)
        assert process.returncode == DEVICE_BROKEN, errors
        assert f"rank 1 of 2 ends, since it computes no more: {reason}" in errors


ORPHAN = """
import threading
from target_service.rank import stop_with_launcher
stop_with_launcher()
print("runs", flush=True)
threading.Event().wait()
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_a_rank_is_told_to_stop_when_its_launcher_is_killed() -> None:
    argv = [sys.executable, "-c", LAUNCHER, ORPHAN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        hear(launcher, "runs")
        launcher.kill()
        assert launcher.stdout is not None
        assert launcher.stdout.read() == ""  # once the rank, too, has let go of it


class Patient:
    """A follower that runs until the test lets it end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def run(self) -> None:
        assert self.may_end.wait(SOON_S)

    def ask_to_stop(self) -> None:
        raise AssertionError("nobody has told it to stop")


async def test_a_rank_tells_its_health_while_it_waits_and_is_ready_when_it_follows() -> None:
    server = GrpcServer("a.Service", None)
    port = await server.start("127.0.0.1", 0)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def says(service: str) -> str:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

        assert (await says(""), await says("a.Service")) == ("SERVING", "NOT_SERVING")
        follower, thread = Patient(), device_thread("device")
        following = asyncio.create_task(follow(SECOND, follower, server, thread))
        async with asyncio.timeout(SOON_S):
            while await says("a.Service") != "SERVING":
                pass
        follower.may_end.set()
        await following
        thread.shutdown()
    await server.stop(0)


async def test_a_rank_that_waits_says_so_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rank, "TELL_S", 0.01)
    caplog.set_level(logging.INFO)
    may_end, thread = threading.Event(), device_thread("device")
    building = asyncio.create_task(built(SECOND, may_end.wait, thread))
    await until(lambda: len(caplog.messages) >= 2)
    assert caplog.messages[-1] == (
        "rank 1 of 2 loads its share, or waits for other ranks at 127.0.0.1:29500"
    )
    may_end.set()
    assert await building
    thread.shutdown()


def test_ranks_of_one_host_share_its_cores_and_leave_the_ports_to_the_first() -> None:
    settings = TargetSettings(health_port=50062, metrics_port=9061)
    first, second = (
        settings_of_rank(settings, RankPlace(number, 2, "127.0.0.1", 29500, local_size=2))
        for number in (0, 1)
    )
    assert (first.port, first.health_port, first.metrics_port) == (settings.port, 50062, 9061)
    assert (second.port, second.health_port, second.metrics_port) == (0, 0, 0)
    assert first.num_threads == second.num_threads == max(1, rank.num_cores() // 2)


def test_a_rank_with_a_host_of_its_own_is_as_it_was_told() -> None:
    settings = TargetSettings(health_port=50062)
    assert settings_of_rank(settings, RankPlace(1, 2, "pod-0.ranks", 29500)) == settings
    told = settings.model_copy(update={"num_threads": 3})
    assert settings_of_rank(told, SECOND).num_threads == 3
