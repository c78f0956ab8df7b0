"""What a process knows of its group of ranks before there is one: its place, by the variables that
torchrun sets, and what it is told when the group is no more.

Knows nothing of torch, of a model or of what ranks say to one another. Variables are looked at only
where several ranks are wanted, so that those of other software do no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from paceline.addresses import with_port
from paceline.errors import InvalidConfig, shown
from paceline.security_settings import is_loopback

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
"""How a rank is told its place; the last one may be missing."""
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""There where torchrun has started the process."""


class GroupBroken(Exception):
    """A rank has ended or does not answer: the others can compute no more and have to end."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank of which group a process is."""

    rank: int
    size: int
    master_addr: str
    """Where rank 0 is."""
    master_port: int
    """Where rank 0 listens for the others while the group forms."""
    local_size: int = 1
    """Ranks on this host, which share its memory, cores and ports."""

    @property
    def meeting_point(self) -> str:
        """Where the ranks find one another, with the port."""
        return with_port(self.master_addr, self.master_port)

    @property
    def local_rank(self) -> int:
        """Its number on this host; launchers number the ranks of a host one after the other."""
        return self.rank % self.local_size

    @property
    def is_first_of_host(self) -> bool:
        """Whether it is the one that listens where the settings say; the others of a host take any
        free ports."""
        return self.local_rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def find_place(size: int, variables: Mapping[str, str]) -> RankPlace | None:
    """The place of this process in a group of `size` ranks; None: it is alone.

    Raises `InvalidConfig`, for variables that are missing, make no sense, or tell of another group.
    """
    if size == 1:
        return None
    missing = [name for name in VARIABLES[:-1] if not variables.get(name)]
    if missing:
        _refuse_missing(size, missing)
    world_size = _number(variables, "WORLD_SIZE", 1)
    if world_size != size:
        raise InvalidConfig(
            f"WORLD_SIZE is {world_size}, but --tensor-parallel-size "
            f"(PACELINE_TENSOR_PARALLEL_SIZE) is {size}; expected the same number of ranks"
        )
    address = variables["MASTER_ADDR"]
    if "[" in address:
        raise InvalidConfig(f"MASTER_ADDR is {address!r}; expected an address without brackets")
    # Where rank 0 is reached by such an address, all ranks are on its host.
    local_size = size if is_loopback(address) else 1
    if variables.get("LOCAL_WORLD_SIZE"):
        local_size = _number(variables, "LOCAL_WORLD_SIZE", 1, size)
    return RankPlace(
        rank=_number(variables, "RANK", 0, size - 1),
        size=size,
        master_addr=address,
        master_port=_number(variables, "MASTER_PORT", 1, 65535),
        local_size=local_size,
    )


def _number(variables: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    text = variables[name]
    expected = f"{least} or more" if most is None else f"{least} to {most}"
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise InvalidConfig(f"{name} is {shown(text)}; expected an integer, {expected}")
    return number


def _refuse_missing(size: int, missing: list[str]) -> NoReturn:
    are = "is" if len(missing) == 1 else "are"
    raise InvalidConfig(
        f"--tensor-parallel-size (PACELINE_TENSOR_PARALLEL_SIZE) is {size}, and "
        f"{', '.join(missing)} {are} not set: {size} processes share the model and find one "
        "another by these variables. Expected "
        f"`torchrun --nproc-per-node {size} -m target_service --tensor-parallel-size {size} …`, "
        f"which sets them, or {size} processes with WORLD_SIZE={size}, RANK=0 to {size - 1}, and "
        "the address and a free port of rank 0 as MASTER_ADDR and MASTER_PORT"
    )
