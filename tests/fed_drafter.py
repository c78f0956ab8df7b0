"""A drafter that is fed with the target's hidden states, for the table model.

The table model's features name token and place, so this one can tell whether it has got the right
rows. It drafts the table's own text where it has, and nothing where it has not.
"""

from plain_text import next_token

from draft_service.proposer import Proposal
from paceline.engine.sequences import EngineSequence, SequenceTable
from paceline.engine.table_model import TableLaw
from paceline.rounds import WorkerLoad


class FedDrafter:
    """Drafts right where the rows before the last token are the target's."""

    def __init__(self, law: TableLaw) -> None:
        self._law = law
        self._table = SequenceTable()
        self.num_rows: list[int] = []

    @property
    def table(self) -> SequenceTable:
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            known = [*proposal.sequence.log.token_ids]
            while self._is_fed(proposal.sequence) and not proposal.is_done:
                proposal.add(next_token(self._law, known, proposal.sequence.settings))
                known.append(proposal.token_ids[-1])
            proposal.is_done = True

    def _is_fed(self, sequence: EngineSequence) -> bool:
        features = sequence.features
        assert features is not None
        token_ids = sequence.log.token_ids[features.start : features.end]
        expected = [*zip(token_ids, range(features.start, features.end), strict=False)]
        assert features.rows.tolist() == [list(row) for row in expected], "rows of other tokens"
        self.num_rows.append(len(features.rows))
        return features.end == len(sequence.log) - 1
