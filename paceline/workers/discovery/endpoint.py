"""A worker as a source sees it from outside, and what is known of one source."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a worker should be."""

    address: str
    """As gRPC takes it; IPv6 in brackets."""
    uid: str = ""
    """What runs there, where the source knows: another uid at the address is another worker."""
    closed: str = ""
    """Why no new sequence may go there; empty: it may. Running ones stay in any case."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source as users are shown it."""

    source: str
    """As it was configured."""
    num_open: int
    """Endpoints for new sequences."""
    num_closed: int
    """Endpoints that only finish what they have."""
    heard_s_ago: float | None
    """Since the source last said something; None: never, or it is a fixed address."""
    problem: str
    """What is wrong; empty when nothing is. What was seen before is kept meanwhile."""


class Sighting:
    """The newest word of one source. A source that fails takes nothing back."""

    def __init__(self, source: str, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever `endpoints` are others than before."""
        self.source = source
        self.endpoints: tuple[Endpoint, ...] = ()
        self.problem = "it has not been asked yet"
        self._heard_at: float | None = None
        self._on_change = on_change

    @classmethod
    def of_fixed(cls, address: str) -> "Sighting":
        """Of an address that is always there."""
        sighting = cls(address, lambda: None)
        sighting.endpoints, sighting.problem = (Endpoint(address),), ""
        return sighting

    def saw(self, endpoints: Iterable[Endpoint], problem: str = "") -> None:
        """The source has said what there is; `problem` is what is wrong with that."""
        self._heard_at = time.monotonic()
        self.failed(problem)
        seen = tuple(endpoints)
        if seen != self.endpoints:
            self.endpoints = seen
            self._on_change()

    def failed(self, problem: str) -> None:
        """The source could not be asked."""
        if problem and problem != self.problem:
            logger.warning("%s: %s; %d workers known", self.source, problem, len(self.endpoints))
        elif self.problem and not problem:
            logger.info("%s can be asked", self.source)
        self.problem = problem

    def state(self) -> SourceState:
        """For status pages."""
        num_open = sum(not endpoint.closed for endpoint in self.endpoints)
        heard_s_ago = None
        if self._heard_at is not None:
            heard_s_ago = round(time.monotonic() - self._heard_at, 3)
        return SourceState(
            source=self.source,
            num_open=num_open,
            num_closed=len(self.endpoints) - num_open,
            heard_s_ago=heard_s_ago,
            problem=self.problem,
        )
