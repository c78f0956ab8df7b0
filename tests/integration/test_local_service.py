"""`paceline serve` and what it tells, watches, stops and reports, over stand-ins."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from stand_ins import COORDINATOR, DEAF, NOTE, RANK, STRANGER, WORKER, Served
from waiting import wait_until

from paceline.cores import num_cores


class Serve(Protocol):
    """Starts `paceline serve` with these options; stand-ins may be replaced by name."""

    def __call__(self, *options: str, **stand_ins: str) -> Served: ...


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as running:

        def start(*options: str, **stand_ins: str) -> Served:
            return running.enter_context(Served(tmp_path, stand_ins, *options))

        yield start


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_process_is_told_its_own_settings_and_all_stop_in_order(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve("--model", "table:7", "--num-threads", "2", "--redis-url", "none")
    served.wait_ready()
    target, draft = served.told("TargetService"), served.told("DraftService")
    coordinator = served.told("coordinator")
    assert target["PACELINE_MODEL"] == "table:7"
    assert target["OMP_NUM_THREADS"] == target["PACELINE_NUM_THREADS"] == "2"
    assert "PACELINE_HTTP_PORT" not in target
    assert draft["PACELINE_DRAFTER"] == "suffix"
    assert "PACELINE_MODEL" not in draft
    assert coordinator["PACELINE_TARGETS"] == f"127.0.0.1:{target['PACELINE_PORT']}"
    assert coordinator["PACELINE_DRAFTS"] == f"127.0.0.1:{draft['PACELINE_PORT']}"
    assert coordinator["PACELINE_REDIS_URL"] == ""
    assert served.url == f"http://127.0.0.1:{coordinator['PACELINE_HTTP_PORT']}"
    assert served.grpc_address == f"127.0.0.1:{coordinator['PACELINE_GRPC_PORT']}"

    pids = served.all_pids()
    served.process.send_signal(signal.SIGTERM)
    status, errors = served.end()
    assert (status, errors.splitlines()[-1]) == (0, "Stopped.")
    assert served.stopped_at("coordinator") < served.stopped_at("TargetService")
    assert served.stopped_at("coordinator") < served.stopped_at("DraftService")
    wait_until_gone(pids)
    assert list(tmp_path.glob("paceline-*")) == []


def test_ports_are_kept_for_whoever_listens_late(serve: Serve) -> None:
    served = serve(
        "--redis-url",
        "none",
        target_service=f"NAME = 'TargetService'{NOTE}{STRANGER}{WORKER}",
        coordinator=f"NAME = 'coordinator'{NOTE}{STRANGER}{COORDINATOR}",
    )
    served.wait_ready()


def test_it_brings_a_redis_along_and_takes_it_away(serve: Serve) -> None:
    served = serve("--drafter", "none")
    served.wait_ready()
    url = served.told("coordinator")["PACELINE_REDIS_URL"]
    assert served.told("coordinator")["PACELINE_DRAFTS"] == ""
    assert url.startswith("unix://")
    assert Path(url.removeprefix("unix://")).is_socket()
    served.process.send_signal(signal.SIGINT)
    assert served.end()[0] == 0
    assert not Path(url.removeprefix("unix://")).exists()


def test_a_model_that_is_missing_is_reported_before_the_coordinator_starts(
    serve: Serve, tmp_path: Path
) -> None:
    served = serve("--model", "/missing", "--redis-url", "none")
    status, errors = served.end()
    assert status == 1
    assert "target-1 ended (exit code 1)" in errors
    assert "the model '/missing' does not exist" in errors
    [log] = tmp_path.glob("paceline-*/target-1.log")
    assert str(log) in errors
    assert log.read_text() == "the model '/missing' does not exist\n"
    assert not (served.notes / "coordinator.settings").exists()
    wait_until_gone(served.all_pids())


def test_a_lost_draft_is_reported_and_the_service_goes_on(serve: Serve) -> None:
    served = serve("--redis-url", "none")
    served.wait_ready()
    os.kill(served.told("DraftService")["pid"], signal.SIGKILL)
    assert "signal SIGKILL: something killed it" in served.read_message("draft-1 ended")
    assert served.read_message("The service") == "The service goes on, without drafts.\n"
    assert is_running(served.told("coordinator")["pid"])
    served.process.send_signal(signal.SIGTERM)
    status, errors = served.end()
    assert status == 0
    assert "The logs are kept in" in errors


@pytest.mark.parametrize("name", ["TargetService", "coordinator"])
def test_without_the_last_target_or_the_coordinator_everything_ends(
    serve: Serve, name: str
) -> None:
    served = serve("--redis-url", "none")
    served.wait_ready()
    os.kill(served.told(name)["pid"], signal.SIGSEGV)
    status, errors = served.end()
    assert status == 1
    assert "ended (signal SIGSEGV: it crashed in native code)" in errors
    wait_until_gone(served.all_pids())


def answering_the_first_question_with(code: str) -> str:
    """A coordinator that does something else once when it is asked which model it serves."""
    once = f"if self.path == '/v1/models' and unasked and unasked.pop():\n            {code}"
    asked = COORDINATOR.replace(
        "self.send_response(200)", f"{once}\n        self.send_response(200)"
    )
    return f"NAME = 'coordinator'{NOTE}unasked = [True]{asked}"


@pytest.mark.parametrize("code", ["return", "self.send_response(503); self.end_headers(); return"])
def test_a_question_that_stays_open_does_not_end_the_service(serve: Serve, code: str) -> None:
    served = serve("--redis-url", "none", coordinator=answering_the_first_question_with(code))
    served.wait_ready()
    assert all(map(is_running, served.all_pids()))


def test_a_coordinator_that_dies_when_it_is_ready_is_named(serve: Serve) -> None:
    dies = answering_the_first_question_with("os.kill(os.getpid(), signal.SIGKILL)")
    status, errors = serve("--redis-url", "none", coordinator=dies).end()
    assert status == 1
    assert "coordinator ended (signal SIGKILL" in errors


def test_generate_says_which_process_ended_the_answer(tmp_path: Path) -> None:
    dies = f"NAME = 'coordinator'{NOTE}{COORDINATOR}".replace(
        "port =", "    def do_POST(self):\n        os.kill(os.getpid(), signal.SIGKILL)\nport ="
    )
    arguments = ("Hi", "--raw")
    with Served(tmp_path, {"coordinator": dies}, *arguments, command="generate") as served:
        status, errors = served.end()
    assert status == 1
    assert "coordinator ended (signal SIGKILL" in errors
    wait_until_gone(served.all_pids())


def test_no_process_outlives_a_killed_serve(serve: Serve) -> None:
    served = serve()
    served.wait_ready()
    pids = served.all_pids()
    assert len(pids) == 3
    served.process.kill()
    served.process.communicate()
    wait_until_gone(pids)


def test_a_second_interrupt_ends_it_at_once(serve: Serve) -> None:
    deaf = f"NAME = 'coordinator'{NOTE}{DEAF}{COORDINATOR}"
    served = serve("--redis-url", "none", coordinator=deaf)
    served.wait_ready()
    served.process.send_signal(signal.SIGINT)
    served.read_message("Stopping;")
    served.process.send_signal(signal.SIGINT)
    status, *printed = served.end()
    assert status == 0
    # Without the second interrupt it waits for the deaf one, and says so before it kills it.
    assert "did not stop in time" not in "".join(printed)
    wait_until_gone(served.all_pids())


def test_ranks_find_their_target_and_it_is_lost_with_any_of_them(serve: Serve) -> None:
    options = ("--tensor-parallel-size", "2", "--target-replicas", "2", "--drafter", "none")
    served = serve("--redis-url", "none", *options, target_service=RANK)
    assert "2 ranks for each target; their logs are in " in served.read_message("Starting target-1")
    served.wait_ready()
    targets = served.told("coordinator")["PACELINE_TARGETS"].split(",")
    ports = [address.rpartition(":")[2] for address in targets]
    ranks = [[served.told(f"{port}-{rank}") for rank in (0, 1)] for port in ports]
    for told in ranks:
        for rank, variables in enumerate(told):
            assert (variables["RANK"], variables["MASTER_ADDR"]) == (str(rank), "127.0.0.1")
            sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "PACELINE_TENSOR_PARALLEL_SIZE")
            assert {variables[name] for name in sizes} == {"2"}
            assert variables["PACELINE_NUM_THREADS"] == str(max(1, num_cores() // 4))
    (one, same), (other, _) = [[each["MASTER_PORT"] for each in told] for told in ranks]
    assert one == same != other
    os.kill(ranks[1][1]["pid"], signal.SIGKILL)
    assert "signal SIGKILL" in served.read_message("target-2.rank-1 ended")
    assert served.read_message("With") == "With this rank target-2 is lost, which had 2.\n"
    assert served.read_message("left") == "1 targets are left.\n"
    wait_until_gone([variables["pid"] for variables in ranks[1]])
    os.kill(ranks[0][0]["pid"], signal.SIGKILL)
    status, errors = served.end()
    assert status == 1
    assert "target-1 ended (signal SIGKILL" in errors
    wait_until_gone(served.all_pids())
