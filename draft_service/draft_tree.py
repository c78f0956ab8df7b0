"""Trees of drafts while they grow: which tokens are run next, and which are proposed at last.

A drafter runs tokens of the tree, is told for each the likeliest ones that may follow, and the tree
says which of those it takes. *Static* trees have one shape: choices are lists of ranks, as Medusa
publishes them (arXiv 2401.10774), and the likeliest token goes where rank 0 is. *Dynamic* ones
follow what the drafter says (EAGLE-2, arXiv 2406.16858): a level at a time the most confident
tokens grow children, and of all that have grown the most confident are proposed.

How likely a token is that stands behind others is the product of the shares on its way, so no token
is likelier than its parent. Plain Python: knows neither heads nor models.
"""

import heapq
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import prod
from typing import Protocol

from paceline.engine.sampling import RankedToken
from paceline.rounds import Drafts

RANK_SHARES = (0.55, 0.15, 0.07, 0.04)
"""How often the first, second … choice of a head is right, roughly: what static trees are shaped
by. Further ones are hardly ever."""
MAX_EXPANDED = 4
"""Tokens of a dynamic tree that are run in one step."""

ROOT = -1
"""Stands for the last token of the sequence, which the tree grows from."""


class DraftTree(Protocol):
    """One tree of at most so many tokens."""

    @property
    def width(self) -> int:
        """How many of the tokens that may follow one it wants to be told, at most."""

    @property
    def running(self) -> Sequence[int]:
        """The tokens that are to be run next, by number; `ROOT` first, none at the end."""

    @property
    def ran(self) -> Sequence[int]:
        """Those that were to be run before, in that order, `ROOT` left out."""

    def way(self, number: int) -> list[int]:
        """The numbers of the tokens from the first one to this one; none for `ROOT`."""

    def token_ids(self, numbers: Sequence[int]) -> list[int]:
        """What these tokens are."""

    def grow(self, following: Sequence[Sequence[RankedToken]]) -> None:
        """Take what may follow each of those that were to be run, the likeliest first."""

    def drafts(self) -> Drafts:
        """What has grown so far, the likeliest first."""


class _Grown:
    """The tokens of a tree in the order in which they grew."""

    def __init__(self, stop_token_ids: Collection[int], min_confidence: float) -> None:
        """Nothing grows behind a stop token, and no token that is less likely than that."""
        self._stop_token_ids = stop_token_ids
        self._min_confidence = min_confidence
        self._tokens: list[RankedToken] = []
        self._parents: list[int] = []
        self._confidences: list[float] = []
        self.ran: list[int] = []
        self.running: Sequence[int] = (ROOT,)

    def way(self, number: int) -> list[int]:
        """See `DraftTree`."""
        way: list[int] = []
        while number != ROOT:
            way.append(number)
            number = self._parents[number]
        return way[::-1]

    def token_ids(self, numbers: Sequence[int]) -> list[int]:
        """See `DraftTree`."""
        return [self._tokens[number].token_id for number in numbers]

    def _add(self, token: RankedToken, parent: int) -> int | None:
        """The number that the token gets; None when it is not wanted."""
        confidence = token.share * (1.0 if parent == ROOT else self._confidences[parent])
        if confidence < self._min_confidence:
            return None
        self._tokens.append(token)
        self._parents.append(parent)
        self._confidences.append(confidence)
        return len(self._parents) - 1

    def _run_next(self, numbers: Sequence[int]) -> None:
        self.ran.extend(number for number in self.running if number != ROOT)
        self.running = numbers

    def _may_grow(self, number: int) -> bool:
        return self._tokens[number].token_id not in self._stop_token_ids

    def _drafts(self, order: Sequence[int]) -> Drafts:
        places = {number: place for place, number in enumerate([ROOT, *order], ROOT)}
        parents = tuple(places[self._parents[number]] for number in order)
        shares = tuple(self._tokens[number].share for number in order)
        return Drafts(tuple(self.token_ids(order)), parents, confidences=shares)


Choice = tuple[int, ...]
"""A place in a tree: the ranks of the tokens from the first one to the one that stands there."""


class StaticTree(_Grown):
    """A tree of one shape, less what nothing is said about."""

    def __init__(
        self,
        choices: Sequence[Choice],
        stop_token_ids: Collection[int] = (),
        min_confidence: float = 0.0,
    ) -> None:
        """`choices`: parents before their children, the likeliest first."""
        super().__init__(stop_token_ids, min_confidence)
        self._choices = choices
        self._numbers: dict[Choice, int] = {(): ROOT}
        self._ranks: dict[Choice, list[int]] = {}
        for *way, rank in choices:
            self._ranks.setdefault(tuple(way), []).append(rank)
        self.width = 1 + max((choice[-1] for choice in choices), default=0)
        self._running: list[Choice] = [()]

    def grow(self, following: Sequence[Sequence[RankedToken]]) -> None:
        """See `DraftTree`."""
        grown: list[Choice] = []
        for choice, tokens in zip(self._running, following, strict=True):
            for rank in self._ranks.get(choice, ()):
                place = (*choice, rank)
                number = None
                if rank < len(tokens):
                    number = self._add(tokens[rank], self._numbers[choice])
                if number is not None:
                    self._numbers[place] = number
                    if place in self._ranks and self._may_grow(number):
                        grown.append(place)
        self._running = grown
        self._run_next([self._numbers[choice] for choice in grown])

    def drafts(self) -> Drafts:
        """See `DraftTree`."""
        return self._drafts([self._numbers[c] for c in self._choices if c in self._numbers])


class DynamicTree(_Grown):
    """The most confident tokens of all that were looked at."""

    width = MAX_EXPANDED

    def __init__(
        self,
        num_tokens: int,
        stop_token_ids: Collection[int] = (),
        min_confidence: float = 0.0,
    ) -> None:
        super().__init__(stop_token_ids, min_confidence)
        self._num_tokens = num_tokens

    def grow(self, following: Sequence[Sequence[RankedToken]]) -> None:
        """See `DraftTree`."""
        num_before = len(self._tokens)
        for parent, tokens in zip(self.running, following, strict=True):
            for token in tokens:
                self._add(token, parent)
        # What is not among the best now has no descendants that ever will be.
        alive = [number for number in self._best() if number >= num_before]
        self._run_next([*islice(filter(self._may_grow, alive), MAX_EXPANDED)])

    def drafts(self) -> Drafts:
        """See `DraftTree`."""
        return self._drafts(self._best())

    def _best(self) -> list[int]:
        """Most confident first, those that grew earlier before their equals: parents come first."""
        numbers = range(len(self._confidences))
        ranked = sorted(numbers, key=lambda number: (-self._confidences[number], number))
        return ranked[: self._num_tokens]


def static_choices(number: int, max_depth: int | None = None) -> list[Choice]:
    """The likeliest places of a tree by `RANK_SHARES`, parents first."""
    choices: list[Choice] = []
    ahead: list[tuple[float, Choice]] = []
    for rank, share in enumerate(RANK_SHARES):
        heapq.heappush(ahead, (-share, (rank,)))
    while ahead and len(choices) < number:
        _, choice = heapq.heappop(ahead)
        choices.append(choice)
        if max_depth is None or len(choice) < max_depth:
            for rank in range(len(RANK_SHARES)):
                likelihood = prod(RANK_SHARES[r] for r in (*choice, rank))
                heapq.heappush(ahead, (-likelihood, (*choice, rank)))
    return choices


NewTree = Callable[[int, Collection[int], float], DraftTree]
"""Makes a tree of so many tokens at most, for a sequence with these stop tokens, and without tokens
that are less likely than the last number."""


def new_static_tree(
    num_tokens: int, stop_token_ids: Collection[int], min_confidence: float
) -> StaticTree:
    """A tree of the likeliest shape."""
    return StaticTree(static_choices(num_tokens), stop_token_ids, min_confidence)


TREES: dict[str, NewTree] = {"static": new_static_tree, "dynamic": DynamicTree}
"""By the names that the setting `draft_tree` has for them."""
