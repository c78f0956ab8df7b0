"""Trees of drafts: what makes one, and ways through it.

A tree is a list of tokens and, for each, the index of its parent: an earlier one, or -1 for what
the tree grows from. So the first n of a tree are a tree too, and a worker that checks no more than
n takes the first n: what is most likely comes first. A chain has no such list, or one in which
every token follows the one before it.

*Depth-first* a tree stands when every token is followed by all that grows from it, before anything
else. Then it falls apart into *branches*, each a run of tokens that follow one another.

Plain Python: knows neither models nor networks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from paceline.rounds import AcceptanceRule, Drafts, SequenceSettings


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every token follows the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def tree_fault(drafts: Drafts) -> str:
    """What keeps drafts from being a tree or a chain, in a sentence; empty when nothing does."""
    token_ids, parents = drafts.token_ids, drafts.parents
    if not parents:
        return ""
    if len(parents) != len(token_ids):
        return (
            f"drafts.parents: has {len(parents)} entries for {len(token_ids)} tokens; expected one "
            "for each, or none for a chain."
        )
    siblings: dict[tuple[int, int], int] = {}
    for index, (token_id, parent) in enumerate(zip(token_ids, parents, strict=True)):
        if not -1 <= parent < index:
            return (
                f"drafts.parents[{index}]: is {parent}; expected the index of an earlier draft, "
                f"from 0 to {index - 1}, or -1 for what follows the span."
            )
        first = siblings.setdefault((parent, token_id), index)
        if first != index:
            return (
                f"drafts.token_ids[{index}]: {token_id} follows the same token as "
                f"drafts.token_ids[{first}]; expected siblings that differ."
            )
    if drafts.supports and not is_chain(parents):
        return "drafts.supports: is set for a tree; expected it with a chain only."
    return ""


def rule_fault(drafts: Drafts, settings: SequenceSettings) -> str:
    """Why drafts cannot be decided about under these settings; empty when they can."""
    rule = settings.acceptance_rule
    if settings.temperature == 0.0 or rule is AcceptanceRule.COUPLED or is_chain(drafts.parents):
        return ""
    return (
        f"drafts.parents: the drafts form a tree; expected a chain under the rule {rule.name} at "
        f"temperature {settings.temperature:g}."
    )


def depths(parents: Sequence[int]) -> list[int]:
    """How far down each token of a tree stands; 1 for those that follow what it grows from."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def children(drafts: Drafts) -> dict[tuple[int, int], int]:
    """The indices of the drafts, by those of their parents and the tokens that they say."""
    parents = drafts.parents or range(-1, len(drafts.token_ids) - 1)
    return {
        (parent, token_id): index
        for index, (parent, token_id) in enumerate(zip(parents, drafts.token_ids, strict=True))
    }


def path_along(drafts: Drafts, token_ids: Sequence[int]) -> list[int]:
    """The drafts that say these tokens, one behind the other, for as long as there are any."""
    following = children(drafts)
    path: list[int] = []
    for token_id in token_ids:
        index = following.get((path[-1] if path else -1, token_id))
        if index is None:
            break
        path.append(index)
    return path


def pruned(drafts: Drafts, is_kept: Callable[[int], bool]) -> Drafts:
    """The tree without the drafts that are not kept, and without all that grows from those."""
    places: dict[int, int] = {-1: -1}
    for index, parent in enumerate(drafts.parents):
        if parent in places and is_kept(index):
            places[index] = len(places) - 1
    kept = [index for index in places if index >= 0]
    return Drafts(
        tuple(drafts.token_ids[index] for index in kept),
        tuple(places[drafts.parents[index]] for index in kept),
    )


def depth_first(drafts: Drafts) -> Drafts:
    """The same tree depth-first, siblings in their order; without parents when it is a chain."""
    below: dict[int, list[int]] = {}
    for index, parent in enumerate(drafts.parents):
        below.setdefault(parent, []).append(index)
    places: dict[int, int] = {-1: -1}
    ahead = below.get(-1, [])[::-1]
    while ahead:
        index = ahead.pop()
        places[index] = len(places) - 1
        ahead.extend(below.get(index, [])[::-1])
    order = [index for index in places if index >= 0]
    parents = tuple(places[drafts.parents[index]] for index in order)
    token_ids = tuple(drafts.token_ids[index] for index in order)
    return Drafts(token_ids, () if is_chain(parents) else parents)


class Branch(NamedTuple):
    """Tokens of a depth-first tree that follow one another."""

    first: int
    """Index of the first one."""
    place: int
    """How many tokens of the tree are on the way to it."""
    num_tokens: int


def branches(parents: Sequence[int]) -> Iterator[Branch]:
    """The branches of a depth-first tree, in order; raises ValueError for another order.

    When all branches up to one are written one after the other, each from its place on, then before
    that place stands what is on the way to it.
    """
    way: list[int] = []
    first, place = 0, 0
    for index, parent in enumerate(parents):
        if parent != index - 1:
            yield Branch(first, place, index - first)
            while way and way[-1] != parent:
                way.pop()
            if not way and parent >= 0:
                raise ValueError(f"the tree {list(parents)} is not depth-first at index {index}")
            first, place = index, len(way)
        way.append(index)
    if parents:
        yield Branch(first, place, len(parents) - first)
