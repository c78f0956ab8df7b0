"""Waiting for what happens soon: as long as it takes, on a busy machine too."""

import asyncio
import time
from collections.abc import Callable

SOON_S = 60.0
"""Far more than anything takes that is called soon in a test. Nobody waits so long where all is
well, however busy the machine: who does has found a fault."""
NEVER_S = 10 * SOON_S
"""For what must not be waited for: longer than a test may take."""


async def until(condition: Callable[[], bool], timeout_s: float = SOON_S) -> None:
    """Wait until something holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {timeout_s:g} s"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], bool], timeout_s: float = SOON_S) -> None:
    """The same where no event loop runs."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {timeout_s:g} s"
        time.sleep(0.01)
