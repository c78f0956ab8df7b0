"""Where processes meet that are to be one group: a store, kept by rank 0 or by torchrun.

Finds out here who cannot belong to the group: torch would let such a process, or all, wait to the
end of a long time-out, and not say for what. Knows nothing of what ranks do then.
"""

import logging
import socket
from datetime import timedelta

from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from paceline.config import library_environment, set_default_environment
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.errors import InvalidConfig
from paceline.security_settings import is_loopback

logger = logging.getLogger(__name__)

_PREFIX = "paceline"
_SIZE = "size"
_COMPLETE = "complete"
_OF_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"
"""By which torchrun says that it keeps the store, and torch that none is to be made."""


def meet_others(place: RankPlace, timeout: timedelta) -> Store:
    """The store of the group, for torch to connect its ranks by.

    Raises:
        InvalidConfig: others came with another size, or rank 0 cannot listen.
        GroupBroken: the group is complete without this process.
        RuntimeError: torch's, as where the others do not come.
    """
    store = _store(place, timeout)
    own = PrefixStore(_PREFIX, store)
    size = own.compare_set(_SIZE, "", str(place.size)).decode()
    if size != str(place.size):
        raise InvalidConfig(
            f"tensor_parallel_size is {place.size} at rank {place.rank}; expected {size}, as at "
            "those that came before"
        )
    if own.add(f"rank {place.rank}", 1) > 1:
        if own.check([_COMPLETE]):
            raise GroupBroken(
                f"the group at {place.meeting_point} is complete, and its rank {place.rank} is "
                "another process"
            )
        # Which may have ended: whoever is started again before the others are there is welcome.
        logger.warning(
            "another process came as rank %d to %s before; where it still runs, one of the two has "
            "the wrong RANK",
            *(place.rank, place.meeting_point),
        )
    return store


def say_complete(store: Store) -> None:
    """Rank 0: all are there; who comes later is not waited for."""
    PrefixStore(_PREFIX, store).set(_COMPLETE, "yes")


def _store(place: RankPlace, timeout: timedelta) -> Store:
    is_torchruns = library_environment(_OF_TORCHRUN).get(_OF_TORCHRUN) == "True"
    if is_loopback(place.master_addr):
        # Nobody else is in the group: what torch opens is not to be reached from elsewhere.
        set_default_environment({"GLOO_SOCKET_IFNAME": _loopback_interface()})
        if place.rank == 0 and not is_torchruns:
            return _loopback_store(place, timeout)
    found = rendezvous("env://", place.rank, place.size, timeout=timeout)
    try:
        store: Store = next(found)[0]
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise _port_is_taken(place) from error
    store.set_timeout(timeout)
    return store


def _loopback_store(place: RankPlace, timeout: timedelta) -> Store:
    """As torch's own, which listens on all addresses."""
    family, _, _, _, address = socket.getaddrinfo(
        place.master_addr, place.master_port, type=socket.SOCK_STREAM
    )[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise _port_is_taken(place) from error
    return TCPStore(
        place.master_addr,
        place.master_port,
        place.size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
    )


def _loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return names[0] if names else "lo"


def _port_is_taken(place: RankPlace) -> InvalidConfig:
    return InvalidConfig(
        f"MASTER_PORT is {place.master_port}, where rank 0 cannot listen since another process "
        "does; expected a free port"
    )
