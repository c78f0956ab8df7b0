"""The state of the whole service, as front ends and metrics show it. Plain data."""

from dataclasses import dataclass, field

from coordinator.requests import SpeculativeStats


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the coordinator sees it."""

    address: str
    role: str
    """`draft` or `target`."""
    ready: bool
    reason: str
    """Why it is not ready; empty when it is."""
    model: str = ""
    drafter: str = ""
    num_sequences: int = 0
    numerics: str = ""
    num_parameters: int = 0
    """Of its model, or of its head without what that borrows from the target."""
    sent_bytes: int = 0
    """Messages of rounds that went to it, since the coordinator started."""
    received_bytes: int = 0
    """Messages of rounds that came from it."""
    varies_with_width: bool = False
    """Whether the bits of its rows depend on the other rows of a pass."""


@dataclass(frozen=True, slots=True)
class ServiceEvents:
    """What has happened to workers and sequences since the coordinator started; by role."""

    num_lost: dict[str, int] = field(default_factory=dict)
    """Streams to workers that broke."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Messages of rounds that went to workers, those too that are gone."""
    received_bytes: dict[str, int] = field(default_factory=dict)
    num_moved: dict[str, int] = field(default_factory=dict)
    """Sequences that went on at another worker."""
    num_numerics_changes: int = 0
    """Sequences that went on at a target of other arithmetic."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One place where workers are looked for (`paceline.workers.discovery`)."""

    source: str
    """As it was configured."""
    role: str
    """`draft` or `target`."""
    num_open: int
    """Workers that it lists for new sequences."""
    num_closed: int
    """Workers that it lists, but that are to finish what they have."""
    heard_s_ago: float | None
    """Since it last said something; None: never, or it is a fixed address."""
    problem: str
    """What is wrong; empty when nothing is. What was seen before is kept meanwhile."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of the whole service."""

    ready: bool
    reason: str
    """Why a request would not work now; empty when it would."""
    model: str
    workers: tuple[WorkerStatus, ...]
    num_running: int
    stats: SpeculativeStats
    """Sums since the coordinator started."""
    session_store: str
    """`redis`, `memory`, or `redis (unreachable: in memory for now)`."""
    num_unwritten_records: int = 0
    """Records that Redis does not have as they are."""
    events: ServiceEvents = field(default_factory=ServiceEvents)
    sources: tuple[SourceStatus, ...] = ()
    """Those of targets first."""
