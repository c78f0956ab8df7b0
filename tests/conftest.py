"""What all tests share. Its place puts this folder on the path for the modules beside it."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# OpenMP reads it when torch is imported, here and in the processes that tests start. Several of
# them compute at once on few cores: threads that spin while they wait take the others' time.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# Where tests run side by side the cores have enough to do: threads that wait for one another after
# each small operation cost more than they bring. `several_threads` is for tests that want them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A script that starts the tests in the background lets them ignore Ctrl-C, which what they start
# would inherit; then a test that interrupts a process waits for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: the time limit of a whole test is enough.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")


@pytest.fixture(scope="module")
def several_threads() -> Iterator[None]:
    """Let torch compute on all cores, for tests of bits: who computes a row must not change it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since some tests wait for most of their time."""
    return len(os.sched_getaffinity(0)) + 1
