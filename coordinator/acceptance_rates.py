"""How often drafts are accepted, by their place in a proposal.

Plain Python: knows no rounds and no tokens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class AcceptanceRates:
    """How often the draft at each place is accepted once the one that it follows was.

    In a chain it follows the one before it; in a tree it follows its parent, and the trees of a
    drafter are taken to keep the shape of the last one.
    """

    tried: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)

    def record(self, parents: Sequence[int], path: Collection[int], decay: float) -> None:
        """Add one round: the parent of each draft, -1 for what follows the span, and the drafts
        that were accepted. Those that follow a rejected one say nothing."""
        for place, parent in enumerate(parents):
            if place == len(self.tried):
                self.tried.append(0.0)
                self.accepted.append(0.0)
                self._parents.append(parent)
            self._parents[place] = parent
            if parent < 0 or parent in path:
                self.tried[place] = self.tried[place] * decay + 1.0
                self.accepted[place] = self.accepted[place] * decay + (place in path)

    def parent(self, place: int) -> int | None:
        """The place of the draft that the one at this place follows; None when nobody knows."""
        return self._parents[place] if place < len(self._parents) else None

    def rate(self, place: int, prior: float, prior_weight: float) -> float:
        """Chance of acceptance at a place."""
        if place >= len(self.tried):
            return prior
        total = self.tried[place] + prior_weight
        return (self.accepted[place] + prior * prior_weight) / total
