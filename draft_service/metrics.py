"""What a draft counts: what drafts and targets have in common, and what it proposed.

What becomes of a proposal only the coordinator and the target know, and count.
"""

from collections.abc import Sequence

from paceline.engine.device_worker import DeviceWorker
from paceline.engine.pass_counts import PassCounts
from paceline.engine.worker_metrics import WorkerMetrics
from paceline.rounds import DraftFault, ProposeResult, ProposeRound, WorkerInfo


class DraftMetrics:
    """The instruments of one draft."""

    def __init__(
        self,
        worker: DeviceWorker[ProposeRound, ProposeResult],
        passes: PassCounts,
        info: WorkerInfo,
    ) -> None:
        self._common = WorkerMetrics("draft", worker, passes, info)
        self.instruments = self._common.instruments
        counter = self.instruments.counter
        self._tokens = counter("propose_draft_tokens", "Drafts that went out.")
        self._steps = counter(
            "propose_steps", "Steps of the drafter's model for proposals; none for copies."
        )
        self._empty = counter("propose_empty", "Proposals without a token.")
        faults = counter(
            "propose_faults",
            "Proposals that ended early for a fault: `not_a_number` in a model's numbers, or "
            "`no_features`, as the target did not send what the drafter is fed with.",
            "reason",
        )
        self._faults = {fault: faults.labels(fault.name.lower()) for fault in DraftFault}

    def answered(self, results: Sequence[ProposeResult]) -> None:
        """Count results that go out."""
        self._common.answered(results)
        for result in results:
            if result.held is not None or result.error is not None:
                continue
            self._tokens.inc(len(result.drafts.token_ids))
            self._steps.inc(result.timing.num_steps)
            self._empty.inc(not result.drafts.token_ids)
            if result.fault is not None:
                self._faults[result.fault].inc()
