"""What was generated before, each tenant's for itself, with bounded memory.

A tenant is a `cache_salt`. Nothing of one tenant is ever found by another, and no count of one
enters an estimate of another's; all that tenants share is the room. A tenant's answers are kept in
two indexes: when the newer one is full, it becomes the older one, and what was in that is
forgotten. Where all tenants together need more room, those go that were here longest ago.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from draft_service.drafters.token_index import TokenIndex

MIN_MATCH = 4
"""Equal tokens that tell a place. With three more of it is in vain, with five less is found."""
LEAD = MIN_MATCH
"""Tokens of the prompt that an answer is kept with, so that its beginning is found."""
MAX_ANSWER = 16384
"""Tokens of an answer that are kept, the last ones: indexing them takes some milliseconds."""
MAX_TENANTS = 4096
"""Tenants whose answers are kept; each takes a kilobyte beside its tokens."""
END = 2**32 - 1
"""Stands behind each answer; no token of a model."""


class EarlierAnswers:
    """The answers of all tenants."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: tokens that are kept at most, all tenants together."""
        self._capacity = capacity
        self._tenants: OrderedDict[str, _Answers] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_tokens

    def of(self, tenant: str) -> Sequence[TokenIndex]:
        """A tenant's answers, the newer ones first; each ends with `END`."""
        answers = self._tenants.get(tenant)
        if answers is None:
            return ()
        self._tenants.move_to_end(tenant)
        return answers.newer, answers.older

    def add(self, tenant: str, token_ids: "array[int]", num_prompt_tokens: int) -> None:
        """Keep what stands behind the prompt."""
        first = max(num_prompt_tokens, len(token_ids) - MAX_ANSWER)
        if first >= len(token_ids):
            return
        answer = token_ids[max(first - LEAD, 0) :]
        answer.append(END)
        full = self._capacity // 4
        if len(answer) > full:
            return
        answers = self._tenants.setdefault(tenant, _Answers())
        self._tenants.move_to_end(tenant)
        if len(answers.newer) + len(answer) > full:
            self._num_tokens -= len(answers.older)
            answers.older, answers.newer = answers.newer, _new_index()
        answers.newer.extend(answer)
        self._num_tokens += len(answer)
        while self._num_tokens > self._capacity or len(self._tenants) > MAX_TENANTS:
            _, forgotten = self._tenants.popitem(last=False)
            self._num_tokens -= len(forgotten)


class _Answers:
    """Those of one tenant, half of `EarlierAnswers`' capacity at most."""

    def __init__(self) -> None:
        self.newer = _new_index()
        self.older = _new_index()

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)


def _new_index() -> TokenIndex:
    return TokenIndex((MIN_MATCH,))
