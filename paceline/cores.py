"""The cores of this machine, as far as this process may use them."""

import os
import sys


def num_cores() -> int:
    """How many there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
