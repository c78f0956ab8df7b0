"""Prompt lookup: copies what followed the last tokens when they stood earlier in the sequence.

Needs no model and costs nothing worth measuring. Saxena, "Prompt Lookup Decoding" (2023); the same
idea is LLMA (arXiv 2304.04487). The longest match wins, the latest among equally long ones. A match
shorter than `MIN_MATCH` tokens is no match: on the default model single-token matches cost more in
wide passes than they bring.
"""

from draft_service.proposer import Proposal
from paceline.engine.sequences import SequenceTable
from paceline.rounds import WorkerLoad

MAX_MATCH = 4
MIN_MATCH = 2


class PromptLookupDrafter:
    """Looks the last tokens up in the sequence itself."""

    def __init__(self) -> None:
        self._table = SequenceTable()

    @property
    def table(self) -> SequenceTable:
        """The sequences."""
        return self._table

    def load(self, num_waiting: int) -> WorkerLoad:
        """The state of the worker."""
        return WorkerLoad(num_sequences=len(self._table), num_waiting=num_waiting)

    def extend(self, proposals: list[Proposal]) -> None:
        """Propose what followed the longest match, or nothing."""
        for proposal in proposals:
            token_ids = proposal.sequence.log.token_ids[:]
            start = find_continuation(token_ids.tobytes())
            while start is not None and not proposal.is_done:
                proposal.add(token_ids[start])
                # What is proposed can itself be copied from: a loop goes on for as long as asked.
                token_ids.append(token_ids[start])
                start += 1
            proposal.is_done = True


TOKEN_BYTES = 4


def find_continuation(token_bytes: bytes) -> int | None:
    """Where the tokens go on that stand behind the best match of the last ones.

    `token_bytes` are the tokens, four bytes each. Returns an index of tokens, smaller than their
    number, or None without a match of at least `MIN_MATCH` tokens.
    """
    num_tokens = len(token_bytes) // TOKEN_BYTES
    for length in range(min(MAX_MATCH, num_tokens - 1), MIN_MATCH - 1, -1):
        pattern = token_bytes[-length * TOKEN_BYTES :]
        # The search ends one token early, so that the match is not the pattern itself.
        end = len(token_bytes) - TOKEN_BYTES
        while (found := token_bytes.rfind(pattern, 0, end)) >= 0:
            if found % TOKEN_BYTES == 0:
                return found // TOKEN_BYTES + length
            end = found + len(pattern) - 1
    return None
