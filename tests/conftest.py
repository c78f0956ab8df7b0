"""What all tests share. Its place puts this folder on the path for the modules beside it."""

import os
import signal

from hypothesis import settings

# OpenMP reads it when torch is imported, here and in the processes that tests start. Several of
# them compute at once on few cores: threads that spin while they wait take the others' time.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A script that starts the tests in the background lets them ignore Ctrl-C, which what they start
# would inherit; then a test that interrupts a process waits for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: the time limit of a whole test is enough.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since some tests wait for most of their time."""
    return len(os.sched_getaffinity(0)) + 1
