"""What came of one round, or of several, as the attributes of a span. Sums, no tokens."""

from time import time_ns

from coordinator.decode_loop import Committed, ProposeOutcome, RoundPlan
from paceline.telemetry.span import Attributes


class RoundFacts:
    """Counts and times of the rounds that one span stands for."""

    def __init__(self, target: str = "", draft: str = "") -> None:
        self.target = target
        """Address of the target."""
        self.draft = draft
        """Address of the draft; empty without one."""
        self.ended_ns = 0
        """When the last pass came back; 0 when none has."""
        self._num_rounds = 0
        self._num_passes = 0
        self._num_tokens = 0
        self._num_spec_rounds = 0
        self._num_requested = 0
        self._num_proposed = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._is_predicted = False
        self._failure = ""
        self._bytes = [0, 0]
        self._draft_s = 0.0
        self._draft_us = [0, 0]
        self._verify_s = 0.0
        self._target_us = [0, 0]

    def planned(self, plan: RoundPlan) -> None:
        """One more round begins."""
        self._num_rounds += 1
        self._num_requested += plan.num_speculative_tokens

    def committed(self, committed: Committed) -> None:
        """A pass of the target has come back."""
        self.ended_ns = time_ns()
        self._num_passes += 1
        self._num_tokens += len(committed.token_ids)
        self._num_spec_rounds += committed.num_draft_tokens > 0
        self._num_drafted += committed.num_draft_tokens
        self._num_accepted += committed.num_accepted_tokens
        self._verify_s += committed.elapsed_s
        self._target_us[0] += committed.timing.queue_us
        self._target_us[1] += committed.timing.compute_us
        if committed.propose is not None:
            self._proposed(committed.propose)

    def count_bytes(self, num_sent: int, num_received: int) -> None:
        """Of messages to a worker and back."""
        self._bytes[0] += num_sent
        self._bytes[1] += num_received

    def _proposed(self, propose: ProposeOutcome) -> None:
        self._is_predicted |= propose.is_predicted
        self._failure = propose.failure or self._failure
        if propose.is_predicted:
            return
        self._num_proposed += len(propose.drafts.token_ids)
        self._draft_s += propose.elapsed_s
        self._draft_us[0] += propose.timing.queue_us
        self._draft_us[1] += propose.timing.compute_us

    def attributes(self, *, has_bytes: bool) -> Attributes:
        """What the span says; of several rounds also how many they are."""
        sometimes: dict[str, str | int] = {
            "paceline.spec.failure": self._failure,
            "paceline.spec.predicted": self._is_predicted,
            "paceline.target.worker": self.target,
            "paceline.draft.worker": self.draft,
        }
        if has_bytes:
            sometimes["paceline.sent_bytes"], sometimes["paceline.received_bytes"] = self._bytes
        else:
            sometimes["paceline.round.count"] = self._num_rounds
        return {
            "paceline.round.passes": self._num_passes,
            "paceline.round.tokens": self._num_tokens,
            "paceline.spec.rounds": self._num_spec_rounds,
            "paceline.spec.requested": self._num_requested,
            "paceline.spec.proposed": self._num_proposed,
            "paceline.spec.drafted": self._num_drafted,
            "paceline.spec.accepted": self._num_accepted,
            "paceline.draft_ms": 1000 * self._draft_s,
            "paceline.draft.queue_ms": self._draft_us[0] / 1000,
            "paceline.draft.compute_ms": self._draft_us[1] / 1000,
            "paceline.verify_ms": 1000 * self._verify_s,
            "paceline.target.queue_ms": self._target_us[0] / 1000,
            "paceline.target.compute_ms": self._target_us[1] / 1000,
            **{name: value for name, value in sometimes.items() if value},
        }
