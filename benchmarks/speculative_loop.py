"""Draft and target in one process with nothing between them: as fast as rounds can be."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

from contenders import Prompt, Run

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.proposer import Proposer
from paceline.engine.model import LanguageModel
from paceline.rounds import NO_DRAFTS, Drafts, ProposeRound, SequenceSettings, VerifyRound
from paceline.token_log import TokenLog
from target_service.verifier import Verifier, VerifierLimits


@dataclass(frozen=True, slots=True)
class SpeculativeRun:
    """A run with drafts."""

    run: Run
    acceptance: float
    """Share of the drafts that the target took."""
    draft_share: float
    """Share of the time that went into drafts."""


@dataclass(slots=True)
class _Sequence:
    """One prompt and what became of it."""

    log: TokenLog
    settings: SequenceSettings
    num_known: int = 0
    """Tokens that the workers have."""

    @property
    def is_done(self) -> bool:
        return len(self.log) >= self.settings.max_length


class SpeculativeLoop:
    """Decodes greedily; every round proposes, then verifies, all sequences together."""

    def __init__(self, target: LanguageModel, draft: LanguageModel, num_drafts: int) -> None:
        self._verifier = Verifier(target, VerifierLimits())
        self._proposer = Proposer(ModelDrafter(draft), num_drafts)
        self._num_wanted = num_drafts
        self._num_runs = 0
        self._num_rounds = 0
        self._num_drafts = 0
        self._num_accepted = 0

    def run(self, prompts: Sequence[Prompt], num_tokens: int) -> SpeculativeRun:
        """All prompts at the same time, on a thread of its own as `BareLoop` has one."""
        with ThreadPoolExecutor(1) as device:
            return device.submit(self._run, prompts, num_tokens).result()

    def _run(self, prompts: Sequence[Prompt], num_tokens: int) -> SpeculativeRun:
        self._num_runs += 1
        self._num_drafts = self._num_accepted = 0
        sequences = {
            f"{self._num_runs}-{number}": _Sequence(
                TokenLog.of(prompt), SequenceSettings(max_length=len(prompt) + num_tokens)
            )
            for number, prompt in enumerate(prompts)
        }
        proposing_s, times = 0.0, []
        started = perf_counter()
        while running := {name: s for name, s in sequences.items() if not s.is_done}:
            self._num_rounds += 1
            began = perf_counter()
            drafts = self._propose(running)
            proposing_s += perf_counter() - began
            self._verify(running, drafts)
            times.append(perf_counter() - started)
        seconds = perf_counter() - started
        for name in sequences:
            self._verifier.close(name)
            self._proposer.close(name)
        token_ids = [list(s.log.token_ids[-num_tokens:]) for s in sequences.values()]
        per_token_s = (times[-1] - times[0]) / max(num_tokens - 1, 1)
        return SpeculativeRun(
            Run(token_ids, seconds, times[0], per_token_s),
            self._num_accepted / max(self._num_drafts, 1),
            proposing_s / seconds,
        )

    def _propose(self, running: dict[str, _Sequence]) -> dict[str, Drafts]:
        drafts = {}
        for name, s in running.items():
            span = s.log.span(s.num_known)
            round = ProposeRound(name, self._num_rounds, span, self._num_wanted, s.settings)
            if (at_once := self._proposer.accept(round)) is not None:
                drafts[name] = at_once.drafts
        while self._proposer.has_work:
            for result in self._proposer.step() or ():
                drafts[result.sequence_id] = result.drafts
        return drafts

    def _verify(self, running: dict[str, _Sequence], drafts: dict[str, Drafts]) -> None:
        for name, s in running.items():
            span = s.log.span(s.num_known)
            found = drafts.get(name, NO_DRAFTS)
            round = VerifyRound(name, self._num_rounds, span, found, settings=s.settings)
            refused = self._verifier.accept(round)
            assert refused is None, refused
            s.num_known = len(s.log)
        while self._verifier.has_work:
            for result in self._verifier.step() or ():
                assert result.error is None, result.error
                running[result.sequence_id].log.token_ids.extend(result.token_ids)
                self._num_drafts += result.num_draft_tokens
                self._num_accepted += result.num_accepted_tokens
