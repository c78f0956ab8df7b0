"""Whether the device can go on after a pass that failed.

CUDA has errors that stay: after a wrong access, a failed assertion of a kernel, or a card that fell
off the bus every later call fails too, and only a new process computes again. Memory that ran out
is none of them. Imports no torch, since a worker of the table model has none of it.
"""

import sys


class DeviceLost(Exception):
    """The device computes no more: its process has to end."""


def what_lost_it() -> str:
    """Why this thread's device computes no more; empty where it does."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:  # as all of CUDA's are
        return str(error).strip().partition("\n")[0]
    return ""
