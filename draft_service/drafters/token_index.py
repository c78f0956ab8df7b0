"""Where the last tokens of a text stand in a text that grows and shrinks at its end.

For each length that is asked for, every place is linked to the one before behind the same tokens,
as in Lempel-Ziv compressors. So a token more or less costs the same however long the text is, and a
search looks at no more places than it was told to, the newest first. Takes some 80 bytes a token.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from paceline.token_log import common_length

_NONE = 0
"""No place: nothing stands before the first token."""


class TokenIndex:
    """A text, and its places by the tokens before them. A place is the index of what follows."""

    def __init__(self, orders: Sequence[int]) -> None:
        """`orders`: after how many equal tokens places are found, e.g. (3, 1)."""
        self.token_ids = array("I")
        self._links = [_Links(order) for order in orders]

    def __len__(self) -> int:
        return len(self.token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """More tokens at the end."""
        self.token_ids.extend(token_ids)
        for links in self._links:
            links.extend(self.token_ids)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        for links in self._links:
            links.truncate(self.token_ids, length)
        del self.token_ids[length:]

    def follow(self, token_ids: "array[int]", most: int) -> bool:
        """Become like another text by so many new tokens at most; False while there is more to do.

        Where more than that would have to be taken back, it begins anew.
        """
        num_equal = common_length(self.token_ids, token_ids)
        if len(self) - num_equal > most:
            self.clear()
        else:
            self.truncate(num_equal)
        self.extend(token_ids[len(self) : len(self) + most])
        return len(self) == len(token_ids)

    def clear(self) -> None:
        """Keep nothing."""
        self.token_ids = array("I")
        for links in self._links:
            links.clear()

    def places(self, tail: "array[int]", most: int) -> Iterator[int]:
        """Places behind the last tokens of `tail`, each once.

        Up to `most` for each order, in the sequence of the orders, the newest first; never the end
        of the text, where nothing follows.
        """
        seen: set[int] = set()
        for links in self._links:
            for place in islice(links.places(tail, len(self)), most):
                if place not in seen:
                    seen.add(place)
                    yield place


class _Links:
    """For one order: the newest place behind each n-gram, and from each place the one before."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._newest: dict[int, int] = {}
        self._before = array("I")
        """From place i + 1 to the one before behind the same n-gram."""

    def extend(self, token_ids: "array[int]") -> None:
        order, newest, before = self._order, self._newest, self._before
        mask = (1 << 32 * order) - 1
        start = len(before)
        key = _key(token_ids[max(start - order + 1, 0) : start])
        for place, token_id in enumerate(token_ids[start:], start + 1):
            key = (key << 32 | token_id) & mask
            if place < order:
                before.append(_NONE)
                continue
            before.append(newest.get(key, _NONE))
            newest[key] = place

    def truncate(self, token_ids: "array[int]", length: int) -> None:
        for place in range(len(self._before), length, -1):
            before = self._before.pop()
            if place < self._order:
                continue
            key = _key(token_ids[place - self._order : place])
            if before == _NONE:
                del self._newest[key]
            else:
                self._newest[key] = before

    def clear(self) -> None:
        self._newest, self._before = {}, array("I")

    def places(self, tail: "array[int]", end: int) -> Iterator[int]:
        """Newest first, without `end`."""
        if len(tail) < self._order:
            return
        place = self._newest.get(_key(tail[len(tail) - self._order :]), _NONE)
        while place != _NONE:
            if place != end:
                yield place
            place = self._before[place - 1]


def _key(token_ids: "array[int]") -> int:
    key = 0
    for token_id in token_ids:
        key = key << 32 | token_id
    return key
