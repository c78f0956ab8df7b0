"""Random trees of drafts, and what each of their tokens stands behind."""

from collections.abc import Sequence

from hypothesis import strategies as st

from paceline.rounds import Drafts


@st.composite
def trees(draw: st.DrawFn, token_ids: st.SearchStrategy[int], max_tokens: int) -> Drafts:
    """Trees of any shape with at least one token."""
    numbers = st.tuples(st.integers(0, max_tokens), token_ids)
    said: dict[tuple[int, int], int] = {}
    for number, token_id in draw(st.lists(numbers, min_size=1, max_size=max_tokens)):
        said.setdefault((number % (len(said) + 1) - 1, token_id), len(said))
    return _drafts(said)


def merged(*parts: Drafts) -> Drafts:
    """One tree of all that chains and trees say, the first one's tokens first."""
    said: dict[tuple[int, int], int] = {}
    for part in parts:
        places = {-1: -1}
        for index, (token_id, parent) in enumerate(
            zip(part.token_ids, as_tree(part).parents, strict=True)
        ):
            places[index] = said.setdefault((places[parent], token_id), len(said))
    return _drafts(said)


def as_tree(drafts: Drafts) -> Drafts:
    """The same with parents, when it is a chain without them."""
    chain = tuple(range(-1, len(drafts.token_ids) - 1))
    return Drafts(drafts.token_ids, drafts.parents or chain)


def ways(drafts: Drafts) -> list[list[int]]:
    """For each draft the tokens from the root to it, its own included."""
    found: list[list[int]] = []
    for token_id, parent in zip(drafts.token_ids, as_tree(drafts).parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else ()), token_id])
    return found


def indices(parents: Sequence[int], index: int) -> list[int]:
    """The drafts from the root to one of them."""
    path = []
    while index >= 0:
        path.append(index)
        index = parents[index]
    return path[::-1]


def _drafts(said: dict[tuple[int, int], int]) -> Drafts:
    return Drafts(tuple(token for _, token in said), tuple(parent for parent, _ in said))
