"""Fixtures of the end-to-end tests: whole services that run until the tests are over."""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from processes import Processes, Stack, Worker
from real_tokenizers import smollm2_directory
from redis_server import ManagedRedis

from paceline.engine.checkpoints import truncated_checkpoint
from paceline.heads.shipped import shipped_head

NUM_DRAFT_LAYERS = 6
KV_CACHE_TOKENS = 16_384
"""Ample for what runs at once here; the default would take what memory is free, several times."""
TABLE = "table:7"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with a failure where the logs of the processes are."""
    report = yield
    if report.failed and (processes := item.funcargs.get("processes")):
        report.sections.append(("Logs of the processes", f"{processes.log_directory}/*.log"))
    return report


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> Iterator[Processes]:
    """Starts processes that run until the tests are over; keeps their logs if a test failed."""
    directory = Path(tempfile.mkdtemp(prefix="paceline-e2e-"))
    # As many threads as cores for each: their passes take turns more often than they overlap.
    with Processes(directory, num_threads=len(os.sched_getaffinity(0))) as processes:
        yield processes
    if not request.session.testsfailed:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def session_redis() -> Iterator[ManagedRedis]:
    """A Redis server that no test may stop."""
    with ManagedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def draft_checkpoint() -> Path:
    """A draft for the default model: there is no smaller one with its tokens."""
    target = smollm2_directory()
    directory = target.with_name(f"{target.name}-first-{NUM_DRAFT_LAYERS}-layers")
    return truncated_checkpoint(target, NUM_DRAFT_LAYERS, directory)


@pytest.fixture(scope="session")
def model_workers(processes: Processes, draft_checkpoint: Path) -> dict[str, Worker]:
    """A target of the default model, and a draft of each method."""
    common = {"dtype": "float32", "kv_cache_tokens": KV_CACHE_TOKENS}
    head = str(shipped_head(""))
    return {
        "target": processes.target(head=head, **common),
        "suffix": processes.draft("suffix"),
        "draft-model": processes.draft("draft-model", model=str(draft_checkpoint), **common),
        "self": processes.draft("self", **common),
        "hybrid": processes.draft("hybrid", head=head, kv_cache_tokens=KV_CACHE_TOKENS),
    }


@pytest.fixture(scope="session")
def model_stack(
    processes: Processes, model_workers: dict[str, Worker], session_redis: ManagedRedis
) -> Stack:
    """The default model with a draft of each method and Redis."""
    drafts = {name: worker for name, worker in model_workers.items() if name != "target"}
    return processes.stack(model_workers["target"], drafts, session_redis.url)


@pytest.fixture(scope="session")
def table_stack(processes: Processes, session_redis: ManagedRedis) -> Stack:
    """The table model, where weights do not matter: fast, with a token for each byte."""
    drafts = {
        "suffix": processes.draft("suffix"),
        "draft-model": processes.draft("draft-model", model=f"{TABLE}:0.2"),
        "self": processes.draft("self", model=TABLE),
    }
    return processes.stack(processes.target(model=TABLE), drafts, session_redis.url)
