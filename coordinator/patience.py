"""When to leave a draft alone that does not answer.

Plain Python: knows no workers and no times.
"""

from coordinator.decode_loop import Committed

MAX_MISSES = 3
"""Proposals that may fail in a row before the draft is left alone for a while."""
FIRST_PAUSE_TOKENS = 32


class Patience:
    """Leaves a draft alone after some misses in a row, each time for twice as long."""

    def __init__(self) -> None:
        self._num_misses = 0
        self._pause_tokens = FIRST_PAUSE_TOKENS

    def pause_tokens(self) -> int:
        """For how many tokens the target should go on alone now; mostly 0."""
        if self._num_misses < MAX_MISSES:
            return 0
        self._num_misses = 0
        self._pause_tokens *= 2
        return self._pause_tokens // 2

    def observe(self, committed: Committed) -> None:
        """Count a miss, or forget the misses."""
        if committed.propose is None:
            return
        if committed.propose.is_missed:
            self._num_misses += 1
        else:
            self._num_misses = 0
            self._pause_tokens = FIRST_PAUSE_TOKENS
