"""The state of the workers in the words that users are shown."""

from coordinator.router import Router
from coordinator.service_status import ServiceEvents, ServiceStatus, SourceStatus, WorkerStatus
from paceline.workers.pool import WorkerPool
from paceline.workers.worker import Worker


def unready_reason(pool: WorkerPool, has_tokenizer: bool) -> str:
    """Why a request would not work now; empty when it would."""
    if pool.model is None or not (pool.ready_targets() or pool.closed_targets()):
        reasons = [f"{worker.address}: {_reason(worker)}" for worker in pool.targets]
        reasons += [
            f"{state.source}: {state.problem or 'lists no worker'}"
            for role, state in pool.source_states()
            if role == "target" and (state.problem or not state.num_open + state.num_closed)
        ]
        return "no target worker is ready (" + "; ".join(reasons) + ")"
    return "" if has_tokenizer else "the tokenizer is not loaded yet"


def worker_statuses(pool: WorkerPool) -> tuple[WorkerStatus, ...]:
    """All workers, targets first."""
    return tuple(_status(worker) for worker in (*pool.targets, *pool.drafts))


def is_store_degraded(status: ServiceStatus) -> bool:
    """Whether Redis is wanted but out of reach."""
    return status.session_store.startswith("redis (")


def service_events(pool: WorkerPool, router: Router) -> ServiceEvents:
    """What has happened so far."""
    totals = pool.totals
    return ServiceEvents(
        num_lost={role: total.num_lost for role, total in totals.items()},
        sent_bytes={role: total.sent_bytes for role, total in totals.items()},
        received_bytes={role: total.received_bytes for role, total in totals.items()},
        num_moved=dict(router.num_moved),
        num_numerics_changes=router.num_numerics_changes,
    )


def source_statuses(pool: WorkerPool) -> tuple[SourceStatus, ...]:
    """All sources of workers, those of targets first."""
    return tuple(
        SourceStatus(
            source=state.source,
            role=role,
            num_open=state.num_open,
            num_closed=state.num_closed,
            heard_s_ago=state.heard_s_ago,
            problem=state.problem,
        )
        for role, state in pool.source_states()
    )


def _reason(worker: Worker) -> str:
    if worker.is_connected and worker.held_back:
        return f"gets no new sequences: {worker.held_back}"
    return worker.reason


def _status(worker: Worker) -> WorkerStatus:
    info = worker.info
    return WorkerStatus(
        address=worker.address,
        role=worker.role,
        ready=worker.is_ready,
        reason=_reason(worker),
        model=info.model if info else "",
        drafter=info.drafter if info else "",
        num_sequences=worker.load.num_sequences,
        numerics=info.numerics if info else "",
        num_parameters=info.num_parameters if info else 0,
        sent_bytes=worker.traffic.sent_bytes,
        received_bytes=worker.traffic.received_bytes,
        varies_with_width=info.varies_with_width if info else False,
    )
