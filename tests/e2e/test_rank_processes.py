"""A target of two ranks as processes: what it says, how it is stopped, and when one is lost."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from answers import OFF, Body, ask_all, ask_grpc, check_equal, drafts
from faults import ask_with_fault
from forked_ranks import SERVICE, Rank, RankProcesses, until_serving
from observed import soon, status
from plain_http import plain_get
from ports import HOST
from processes import Coordinator, Processes
from tiny_models import save_checkpoint, tiny_config
from waiting import NEVER_S, SOON_S, wait_until
from whole_coordinator import coordinator

from paceline.cli.readiness import GrpcProbe
from paceline.cli.worker_settings import rank_variables
from paceline.server import DEVICE_BROKEN

pytestmark = pytest.mark.timeout(900)

NUM_CLIENTS = 8
LONG: Body = {"prompt": "On and on", "ignore_eos": True, "max_tokens": 80, "temperature": 0}
SHORT: Body = {**LONG, "max_tokens": 40}
"""torchrun gives processes that it has told to stop 30 seconds."""
FAULT_AT = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny_config()
    config.max_position_embeddings = 512
    return str(save_checkpoint(tmp_path_factory.mktemp("model"), config))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankProcesses]:
    with RankProcesses(tmp_path_factory.mktemp("ranks")) as started:
        yield started


BODIES: list[Body] = [
    {
        "prompt": f"one two three {number}, one two three {number}, one",
        "ignore_eos": True,
        "max_tokens": 24,
        "temperature": (0, 0.9)[number % 2],
        "seed": number,
    }
    for number in range(NUM_CLIENTS)
]


@contextmanager
def torchrun(port: int, model: str, log_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Two ranks, started as the README says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    service = ["-m", "target_service", "--tensor-parallel-size", "2"]
    options = ["--model", model, "--port", str(port), "--drain-seconds", str(NEVER_S)]
    with log_path.open("w") as log:
        run = subprocess.Popen(
            [*command, *service, *options, "--kv-cache-tokens", "8192"],
            stdout=log,
            stderr=log,
        )
    try:
        probe = GrpcProbe(f"{HOST}:{port}", SERVICE)
        wait_until(lambda: probe() or run.poll() is not None, 5 * SOON_S)
        probe.close()
        assert run.poll() is None, log_path.read_text()
        yield run
    finally:
        run.terminate()  # killed it would leave its processes
        run.wait(SOON_S)


async def test_ranks_of_torchrun_say_the_same_with_drafts_and_complete_it_when_told_to_stop(
    processes: Processes, model: str, tmp_path: Path
) -> None:
    port = processes.port()
    with torchrun(port, model, tmp_path / "torchrun.log") as run:
        draft = processes.draft("suffix")
        asked = processes.coordinator([f"{HOST}:{port}"], [draft])
        asked.wait_ready()
        await check_drafts_change_nothing(asked)
        asking = [asyncio.create_task(ask_grpc([asked.grpc_address], SHORT)) for _ in range(3)]

        async def has_begun() -> bool:
            have_ended = all(task.done() for task in asking)
            return have_ended or any(
                worker["num_sequences"] for worker in (await status(asked))["workers"]
            )

        await soon(has_begun, "the answers have begun")
        run.terminate()
        first, *others = [await task for task in asking]
        assert len(first.token_ids) == SHORT["max_tokens"]
        for other in others:
            check_equal(other, first, "of a group that drains")
        await asyncio.to_thread(run.wait, SOON_S)
        for service in (asked, draft):
            service.stop()


async def check_drafts_change_nothing(asked: Coordinator) -> None:
    plain = await ask_all(asked, [{**body, "speculation": OFF} for body in BODIES], 3)
    drafted = [{**body, "speculation": drafts("suffix", 4)} for body in BODIES]
    answers = await ask_all(asked, drafted, NUM_CLIENTS)
    for answer, expected, body in zip(answers, plain, BODIES, strict=True):
        check_equal(answer, expected, f"of {body}")
    assert sum(answer.speculation["num_draft_tokens"] for answer in answers) > 0


async def test_whichever_rank_is_told_to_stop_all_end_behind_the_running_answer(
    started: RankProcesses, model: str
) -> None:
    async def stop(*told: int) -> None:
        group = started.group(2, model=model, drain_seconds=NEVER_S)
        await group.wait_ready()

        def tell() -> None:
            for rank in told:
                group.ranks[rank].signal(signal.SIGTERM)

        async with coordinator([group]) as asked:
            answer = await ask_with_fault([asked.grpc_address], LONG, FAULT_AT, tell)
            assert len(answer.token_ids) == LONG["max_tokens"]
            assert [await rank.end() for rank in group.ranks] == [0, 0], told

    async with asyncio.TaskGroup() as all_at_once:
        for told in ((0,), (1,), (1, 0)):
            all_at_once.create_task(stop(*told))


async def test_whichever_rank_is_killed_or_stands_still_the_other_ends_and_says_so(
    started: RankProcesses, model: str
) -> None:
    async def lose(rank: int, number: signal.Signals) -> None:
        group = started.group(2, model=model, rank_timeout_seconds=10)
        await group.wait_ready()
        group.ranks[rank].signal(number)
        other = group.ranks[1 - rank]
        assert await other.end() == DEVICE_BROKEN
        assert "ends, since it computes no more: rank" in other.log
        if number is signal.SIGSTOP:
            group.ranks[rank].signal(signal.SIGCONT)
            assert await group.ranks[rank].end() == DEVICE_BROKEN

    async with asyncio.TaskGroup() as all_at_once:
        for rank in (0, 1):
            for number in (signal.SIGKILL, signal.SIGSTOP):
                all_at_once.create_task(lose(rank, number))


async def test_ranks_that_were_told_different_things_end_and_say_which(
    started: RankProcesses, model: str
) -> None:
    port = started.port()
    ranks = [
        started.rank(rank_variables(rank, 2, HOST, port), 2, model=model, port=0, dtype=dtype)
        for rank, dtype in enumerate(("float32", "bfloat16"))
    ]
    for rank in ranks:
        assert await rank.end() == 2
        assert "dtype is 'bfloat16' at rank 1; expected 'float32', as at rank 0" in rank.log


async def test_a_rank_is_alive_while_it_waits_and_ready_with_the_others(
    started: RankProcesses, model: str
) -> None:
    meeting_port = started.port()

    health_ports, metrics_port = (started.port(), started.port()), started.port()

    def start(rank: int, **settings: int) -> Rank:
        variables = rank_variables(rank, 2, HOST, meeting_port) | {"LOCAL_WORLD_SIZE": "1"}
        ports = {"port": 0, "health_port": health_ports[rank], **settings}
        return started.rank(variables, 2, model=model, **ports)

    second = start(1, metrics_port=metrics_port)
    await until_serving(f"{HOST}:{health_ports[1]}", "", [second])
    assert not GrpcProbe(f"{HOST}:{health_ports[1]}", SERVICE)()
    first = start(0)
    for port in health_ports:
        await until_serving(f"{HOST}:{port}", SERVICE, [first, second])
    page = await asyncio.to_thread(plain_get, f"http://{HOST}:{metrics_port}/metrics")
    assert "process_resident_memory_bytes" in page.text
