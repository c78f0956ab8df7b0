"""Which workers a sequence runs on.

A session stays where it was answered last; otherwise the first blocks of the prompt decide, so that
equal beginnings meet the KV they share (rendezvous hashing), as long as that worker is not much
busier than the others (bounded load). While targets of unequal numerics are up, a sequence stays
with those of its own, and a new one goes to the newer ones first, so that it need not move when the
older go. Knows workers and tokens, no text and no store.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Sequence

from coordinator.records import Placement
from coordinator.rollout import Age, ages
from coordinator.sequence import DraftWorker, TargetWorker
from paceline.errors import Draining, Unavailable
from paceline.token_log import TokenLog
from paceline.workers.pool import WorkerPool
from paceline.workers.worker import Worker

logger = logging.getLogger(__name__)

ROUTING_TOKENS = 64
"""Tokens of the prompt that decide: long enough to tell system prompts apart."""
LOAD_BOUND = 1.25
"""A worker may have this much more than its share of the sequences before others are preferred."""
TARGET_WAIT_S = 15.0
"""How long a running request waits for a target to come back before it fails."""
CUT = (
    "the coordinator shut down before the answer was complete; another one that keeps its records "
    "in the same Redis goes on with it, asked with Last-Event-ID or resume_from"
)


class Router:
    """Places sequences on workers and counts them."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._num_sequences: Counter[Worker] = Counter()
        self.num_moved: Counter[str] = Counter()
        """Sequences that went on at another worker, by its role."""
        self.num_numerics_changes = 0
        self._has_stopped = False
        self._uses_closed = False

    def place(
        self,
        prompt_token_ids: Sequence[int],
        affinity: Placement | None,
        drafter: str | None,
        length: int = 0,
    ) -> "PlacedWorkers":
        """Workers for a new sequence; `drafter` None takes any method.

        `length` is what the sequence may grow to, prompt included: targets that do not take so many
        tokens are not asked.
        """
        key = TokenLog.of(prompt_token_ids[:ROUTING_TOKENS]).prefix_hash(ROUTING_TOKENS)
        return PlacedWorkers(self, key, affinity or Placement(), drafter, length)

    @property
    def targets_vary(self) -> bool:
        """Whether there is a target whose bits depend on the width of a pass."""
        return any(t.info is not None and t.info.varies_with_width for t in self._pool.targets)

    async def stop(self) -> None:
        """Leave all workers; sequences that need one from now on end with `Draining`."""
        self._has_stopped = True
        await self._pool.stop()

    async def some_ready_targets(self, length: int) -> list[Worker]:
        """The targets that take sequences of so many tokens now; waits for the first.

        Where none is ready, those that answer all the same are tried rather than nothing: first
        those that are only listed as closed or silent, then those that shut down.
        """
        while not self._has_stopped:
            if ready := _long_enough(self._pool.ready_targets(), length):
                self._note_closed(())
                return ready
            if closed := _long_enough(self._pool.closed_targets(), length):
                self._note_closed(closed)
                return closed
            if draining := _long_enough(self._pool.draining_targets(), length):
                return draining
            await self._pool.until_changed()
        raise Draining(CUT)

    def _note_closed(self, used: Sequence[Worker]) -> None:
        """Say it when sequences begin to go where none should, and when that is over."""
        if used and not self._uses_closed:
            logger.warning(
                "no target worker is ready; sequences go to those that still answer: %s",
                ", ".join(f"{worker.address} ({worker.held_back})" for worker in used),
            )
        elif self._uses_closed and not used:
            logger.info("target workers are ready again, and get all sequences")
        self._uses_closed = bool(used)

    def ready_drafts(self, drafter: str | None) -> list[Worker]:
        """The drafts that take rounds now."""
        return self._pool.ready_drafts(drafter)

    def choose(self, workers: Sequence[Worker], key: int) -> Worker:
        """The highest ranked of `workers` that is not overloaded: the newer ones come first."""
        age_of = ages(worker.info for worker in workers if worker.info)
        ranked = sorted(
            workers,
            key=lambda worker: (
                age_of[worker.info.numerics] if worker.info else Age(),
                _rank(worker.address, key),
            ),
            reverse=True,
        )
        total = sum(self._num_sequences[worker] for worker in ranked) + 1
        bound = LOAD_BOUND * total / len(ranked) + 1
        return next(worker for worker in ranked if self._num_sequences[worker] < bound)

    def count(self, worker: Worker, change: int) -> None:
        """A sequence has come to a worker, or left it."""
        self._num_sequences[worker] += change
        if not self._num_sequences[worker]:
            del self._num_sequences[worker]  # so that workers that are gone are forgotten


class PlacedWorkers:
    """The workers of one sequence; chooses others when they are lost."""

    def __init__(
        self, router: Router, key: int, affinity: Placement, drafter: str | None, length: int
    ) -> None:
        self._router = router
        self._key = key
        self._affinity = affinity
        self._drafter = drafter
        self._length = length
        self._target: Worker | None = None
        self._draft: Worker | None = None
        self._numerics = affinity.numerics
        self.numerics_changed = False
        """The sequence has been on targets of unequal arithmetic."""
        self.varies_with_width = False
        """The sequence has been on a target whose bits depend on the width of a pass."""

    @property
    def placement(self) -> Placement:
        """Where the sequence is now."""
        return Placement(
            target=self._target.address if self._target else "",
            draft=self._draft.address if self._draft else "",
            numerics=self._numerics,
        )

    async def target(self, lost: TargetWorker | None) -> Worker:
        """A target, another one than `lost` if there is one; waits a while for one to come."""
        try:
            async with asyncio.timeout(TARGET_WAIT_S):
                ready = await self._router.some_ready_targets(self._length)
        except TimeoutError as error:
            raise Unavailable(
                f"no target worker is ready for a sequence of {self._length} tokens; "
                "try again later"
            ) from error
        if self._numerics:
            equal = [w for w in ready if w.info and w.info.numerics == self._numerics]
            ready = equal or ready
        self._target = self._move(self._target, ready, self._affinity.target, lost)
        info = self._target.info
        self.varies_with_width |= info is not None and info.varies_with_width
        numerics = info.numerics if info else ""
        if self._numerics not in ("", numerics):
            self.numerics_changed = True
            self._router.num_numerics_changes += 1
        self._numerics = numerics
        return self._target

    def draft(self, lost: DraftWorker | None) -> Worker | None:
        """A draft, another one than `lost` if there is one; None without any."""
        ready = [draft for draft in self._router.ready_drafts(self._drafter) if self._feeds(draft)]
        if not ready:
            return None
        self._draft = self._move(self._draft, ready, self._affinity.draft, lost)
        return self._draft

    def _feeds(self, draft: Worker) -> bool:
        """Whether the target sends what the draft is fed with; targets may have unequal heads."""
        target = self._target.info if self._target else None
        return target is None or draft.info is None or draft.info.is_fed_by(target)

    def leave(self) -> None:
        """The sequence has ended."""
        for worker in (self._target, self._draft):
            if worker is not None:
                self._router.count(worker, -1)

    def _move(
        self,
        current: Worker | None,
        ready: Sequence[Worker],
        wanted: str,
        lost: TargetWorker | DraftWorker | None,
    ) -> Worker:
        others = [worker for worker in ready if worker is not lost] or ready
        at_home = [worker for worker in others if worker.address == wanted]
        chosen = at_home[0] if at_home else self._router.choose(others, self._key)
        if current is not None:
            self._router.count(current, -1)
            self._router.num_moved[chosen.role] += chosen is not current
        self._router.count(chosen, +1)
        return chosen


def _long_enough(targets: Sequence[Worker], length: int) -> list[Worker]:
    return [t for t in targets if t.info is not None and t.info.longest_sequence >= length]


def _rank(address: str, key: int) -> bytes:
    return hashlib.blake2b(f"{key}|{address}".encode(), digest_size=8).digest()
