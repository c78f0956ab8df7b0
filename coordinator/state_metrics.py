"""The state of the service as metrics: what `/status` says, in numbers that are few.

Read from the newest `ServiceStatus`, which is made when the metrics are fetched. No worker's
address is a label, since pods come and go: whoever wants to know which, asks `/status`.
"""

from coordinator.service_status import ServiceStatus
from coordinator.status import is_store_degraded
from paceline.metrics import Instruments, Values

ROLES = ("target", "draft")
_DEGRADED = (
    "1 while the service works with less than it should have: `not_ready`, no request would work; "
    "`no_draft`, there are drafts and none is ready; `session_store`, records are in memory only "
    "although Redis is configured."
)


class StateMetrics:
    """Shows a status."""

    def __init__(self, instruments: Instruments) -> None:
        self.status: ServiceStatus | None = None
        counter, gauge = instruments.shown_counter, instruments.shown_gauge
        instruments.show_build("coordinator", self._build)
        gauge(
            "workers",
            "Workers that the coordinator knows, by whether they take rounds.",
            ("role", "state"),
            self._workers,
        )
        counter(
            "worker_losses",
            "Streams to workers that broke: a worker ended, hung or could not be reached.",
            ("role",),
            lambda: self._events("num_lost"),
        )
        counter(
            "migrations",
            "Sequences that went on at another worker than before.",
            ("role",),
            lambda: self._events("num_moved"),
        )
        counter(
            "numerics_changes",
            "Sequences that went on at a target of other arithmetic, for want of an equal one.",
            (),
            lambda: {(): self.status.events.num_numerics_changes} if self.status else {},
        )
        counter(
            "worker_sent_bytes",
            "Bytes of the messages of rounds that went to workers of the role.",
            ("role",),
            lambda: self._events("sent_bytes"),
        )
        counter(
            "worker_received_bytes",
            "Bytes of the messages of rounds that came from workers of the role.",
            ("role",),
            lambda: self._events("received_bytes"),
        )
        gauge(
            "discovery_age_seconds",
            "Since a source of workers last said something; none for a fixed address.",
            ("role", "source"),
            self._discovery_ages,
        )
        gauge(
            "discovery_failing",
            "1 while something is wrong with a source; the workers that it named before are kept.",
            ("role", "source"),
            lambda: {
                (source.role, source.source): bool(source.problem)
                for source in (self.status.sources if self.status else ())
            },
        )
        gauge("degraded", _DEGRADED, ("reason",), self._degraded)
        gauge(
            "session_store_degraded",
            "1 while records of requests are in memory only although Redis is configured.",
            (),
            lambda: {(): is_store_degraded(self.status)} if self.status else {},
        )
        gauge(
            "session_store_unwritten_records",
            "Records and sessions that Redis does not have as they are.",
            (),
            lambda: {(): self.status.num_unwritten_records} if self.status else {},
        )

    def _build(self) -> dict[str, str]:
        status = self.status
        targets = [w.numerics for w in status.workers if w.role == "target"] if status else []
        numerics = next(filter(None, targets), "")
        model = status.model if status else ""
        return {"model": model, "drafter": "", "numerics": numerics[:12]}

    def _workers(self) -> Values:
        found: dict[tuple[str, ...], float]
        found = {(role, state): 0 for role in ROLES for state in ("ready", "not_ready")}
        for worker in self.status.workers if self.status else ():
            found[worker.role, "ready" if worker.ready else "not_ready"] += 1
        return found

    def _discovery_ages(self) -> Values:
        return {
            (source.role, source.source): source.heard_s_ago
            for source in (self.status.sources if self.status else ())
            if source.heard_s_ago is not None
        }

    def _events(self, name: str) -> Values:
        if self.status is None:
            return {}
        numbers: dict[str, int] = getattr(self.status.events, name)
        return {(role,): numbers.get(role, 0) for role in ROLES}

    def _degraded(self) -> Values:
        status = self.status
        if status is None:
            return {}
        drafts = [worker.ready for worker in status.workers if worker.role == "draft"]
        return {
            ("not_ready",): not status.ready,
            ("no_draft",): bool(drafts) and not any(drafts),
            ("session_store",): is_store_degraded(status),
        }
