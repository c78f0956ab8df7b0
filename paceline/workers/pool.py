"""The draft and target workers of one service.

The first target that answers says which model this service has: a target with another model, or a
draft with other tokens, is refused by name and tried again later.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.channel import PLAIN, Access
from paceline.rounds import WorkerInfo
from paceline.workers.connections import RoleTotals
from paceline.workers.discovery.endpoint import SourceState
from paceline.workers.members import Members
from paceline.workers.worker import UnfitWorker, Worker


class WorkerPool:
    """Workers, connected as far as they can be reached; they come and go as their sources say."""

    def __init__(
        self, targets: Sequence[str], drafts: Sequence[str], access: Access = PLAIN
    ) -> None:
        """Sources of both, as `discovery.source_names` has them; raises `InvalidConfig`."""
        self._changed = asyncio.Event()
        self._access = access
        self.totals = {"target": RoleTotals(), "draft": RoleTotals()}
        """By role, those too that are gone."""
        self._targets = self._members("target", targets, self._check_target)
        self._drafts = self._members("draft", drafts, self._check_draft)
        self._drafters: set[str] = set()
        self.model: WorkerInfo | None = None
        """The description of the first target; None until one has answered."""

    @property
    def targets(self) -> list[Worker]:
        """Those that are listed now."""
        return self._targets.workers

    @property
    def drafts(self) -> list[Worker]:
        """Those that are listed now."""
        return self._drafts.workers

    def start(self) -> None:
        """Begin to look for workers, and to connect to all."""
        self._targets.start()
        self._drafts.start()

    async def stop(self) -> None:
        """End all connections."""
        await asyncio.gather(self._targets.stop(), self._drafts.stop())
        self._changed.set()

    async def until_changed(self) -> None:
        """Return when a worker has come or gone, has become ready or stopped being so."""
        self._changed.clear()
        await self._changed.wait()

    def ready_targets(self) -> list[Worker]:
        """The targets that take new sequences now."""
        return [worker for worker in self.targets if worker.is_ready]

    def closed_targets(self) -> list[Worker]:
        """The targets that are held back and still take rounds as any other: those that are only
        listed as closed, else those that do not answer, which may be just slow."""
        held_back = [
            worker
            for worker in self.targets
            if worker.held_back and worker.is_connected and not worker.is_draining
        ]
        return [worker for worker in held_back if not worker.is_silent] or held_back

    def draining_targets(self) -> list[Worker]:
        """The targets that shut down and still take rounds."""
        return [worker for worker in self.targets if worker.is_draining]

    def longest_sequences(self) -> list[int]:
        """Tokens of the longest sequence that each target takes: of those that are ready, else of
        those that may come back; empty until one has answered."""
        if self.model is None:
            return []
        targets = self.ready_targets() or self.closed_targets() or self.targets
        said = [worker.info for worker in targets if worker.info]
        ours = [info for info in said if info.model == self.model.model]
        return [info.longest_sequence for info in ours or [self.model]]

    def ready_drafts(self, drafter: str | None = None) -> list[Worker]:
        """The drafts that take new sequences now, of one method or of any."""
        return [
            worker
            for worker in self.drafts
            if worker.is_ready and worker.info and drafter in (None, worker.info.drafter)
        ]

    def known_drafters(self) -> set[str | None]:
        """The methods of all drafts so far; None among them: there may be others."""
        waits_for_some = any(worker.info is None for worker in self.drafts)
        if waits_for_some or not (self.drafts or self._drafts.are_fixed):
            return {*self._drafters, None}
        return {*self._drafters}

    def source_states(self) -> list[tuple[str, SourceState]]:
        """Role and state of each source, those of targets first."""
        return [
            (role, state)
            for role, members in (("target", self._targets), ("draft", self._drafts))
            for state in members.source_states()
        ]

    def _members(
        self, role: str, sources: Sequence[str], check: Callable[[WorkerInfo], None]
    ) -> Members:
        def new_worker(address: str, on_change: Callable[[], None]) -> Worker:
            return Worker(address, role, check, on_change, self.totals[role], self._access)

        return Members(sources, new_worker, self._changed.set)

    def _check_target(self, info: WorkerInfo) -> None:
        if self.model is None:
            self.model = info
        if info.tokenizer_digest != self.model.tokenizer_digest or info.model != self.model.model:
            raise UnfitWorker(
                f"it serves the model {info.model!r} (tokenizer {info.tokenizer_digest[:12]}); "
                f"expected {self.model.model!r} (tokenizer {self.model.tokenizer_digest[:12]}) "
                "as the first target"
            )
        self._note_features(info)

    def _note_features(self, target: WorkerInfo) -> None:
        """Drafts are fed with what the newest target sends: it may be back with another head."""
        assert self.model is not None
        before, self.model = (
            self.model,
            replace(
                self.model,
                feature_layers=target.feature_layers,
                feature_size=target.feature_size,
                feature_projection=target.feature_projection,
            ),
        )
        if self.model != before:
            for draft in self.drafts:
                draft.check_again()

    def _check_draft(self, info: WorkerInfo) -> None:
        self._drafters.add(info.drafter)
        if self.model is None:
            raise UnfitWorker("no target has said yet which tokens are in use")
        if info.tokenizer_digest not in ("", self.model.tokenizer_digest):
            raise UnfitWorker(
                f"its model {info.model!r} has other tokens (tokenizer "
                f"{info.tokenizer_digest[:12]}) than the target's {self.model.model!r} "
                f"(tokenizer {self.model.tokenizer_digest[:12]}); a draft model that is told "
                "--target-tokenizer translates"
            )
        if info.is_fed_by(self.model):
            return
        if info.feature_layers != self.model.feature_layers:
            raise UnfitWorker(
                f"its drafter {info.drafter!r} is fed with the hidden states of layers "
                f"{_listed(info.feature_layers)}; the target keeps those of "
                f"{_listed(self.model.feature_layers) or 'none'} (--feature-layers)"
            )
        raise UnfitWorker(
            f"its drafter {info.drafter!r} is fed with features {_through(info)}; the target "
            f"sends them {_through(self.model)} (both are told the same --head, or the target "
            "--feature-layers and the draft --feature-projection false)"
        )


def _through(info: WorkerInfo) -> str:
    digest = info.feature_projection
    return f"through the matrix {digest[:12]} of a head" if digest else "as they are"


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
