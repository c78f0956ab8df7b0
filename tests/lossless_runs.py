"""One answer by the real decode loop and real workers, all in one event loop (`fakes`)."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from contextlib import aclosing
from dataclasses import dataclass

from fakes import Fault, FaultyDevice, FixedWorkers

from coordinator.decode_loop import Committed, RoundPlan, decode
from coordinator.sequence import Sequence
from draft_service.proposer import Drafter, Proposer
from paceline.engine.grammar import Grammars
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import Drafts, SequenceSettings
from paceline.token_log import TokenLog
from target_service.verifier import Verifier, VerifierLimits

VOCAB_SIZE = 12
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4] * 2
LAW = TableLaw(5, VOCAB_SIZE)

MAX_RESULTS = 200
LIMITS = VerifierLimits(max_batch_tokens=36, max_speculative_tokens=6)


class NoProgress(AssertionError):
    """Results come without end."""


@dataclass(slots=True)
class ScriptedSpeculation:
    """Plans as they were drawn, over and over."""

    plans: Items[tuple[int, int, float]]
    """Drafts wanted, tokens for which the target goes on alone without drafts, propose time-out."""
    num_planned: int = 0

    def plan(self, sequence: Sequence) -> RoundPlan:
        plan = self.plans[self.num_planned % len(self.plans)]
        self.num_planned += 1
        return RoundPlan(*plan)

    def choose(self, sequence: Sequence, drafts: Drafts) -> Drafts:
        return drafts

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        assert 0 <= committed.num_accepted_tokens <= committed.num_draft_tokens


def target(
    law: TableLaw,
    faults: Iterable[Fault] = (),
    *,
    num_cells: int = 64,
    grammars: Grammars | None = None,
) -> FaultyDevice:
    def verifier() -> Verifier:
        return Verifier(TableModel(law, num_cells=num_cells, cell_size=4), LIMITS, grammars)

    return FaultyDevice(verifier, faults)


def draft(make_drafter: Callable[[], Drafter], faults: Iterable[Fault] = ()) -> FaultyDevice:
    return FaultyDevice(lambda: Proposer(make_drafter(), 8), faults)


async def answer(
    sequence: Sequence, workers: FixedWorkers, plans: Items[tuple[int, int, float]] = ((4, 3, 1.0),)
) -> list[int]:
    token_ids: list[int] = []
    num_results = 0
    async with aclosing(decode(sequence, workers, ScriptedSpeculation(plans))) as rounds:
        async for committed in rounds:
            token_ids += committed.token_ids
            num_results += 1
            if num_results > MAX_RESULTS:
                raise NoProgress
    assert token_ids == list(sequence.log.token_ids[sequence.num_prompt_tokens :])
    return token_ids


def new_sequence(settings: SequenceSettings, prompt: Items[int] = PROMPT) -> Sequence:
    return Sequence(settings, TokenLog.of(prompt), len(prompt))


SEEDED = SequenceSettings(max_length=len(PROMPT) + 16, temperature=1.0, seed=11)
