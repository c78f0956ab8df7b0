"""The tokens of a sequence, and the hash by which two copies are known to be equal."""

import hashlib
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.rounds import TokenSpan


@dataclass(slots=True)
class TokenLog:
    """The tokens of a sequence, four bytes each."""

    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    """Only `sync` may change what is there; anybody may append."""
    _num_hashed: int = field(default=0, init=False, compare=False)
    _hasher: "hashlib.blake2b" = field(
        default_factory=lambda: _new_hasher(), init=False, compare=False
    )
    """Has seen the first `_num_hashed` tokens: a long sequence is not hashed anew every round."""

    @classmethod
    def of(cls, token_ids: Iterable[int]) -> "TokenLog":
        """A log of these tokens."""
        return cls(array("I", token_ids))

    def __len__(self) -> int:
        return len(self.token_ids)

    def prefix_hash(self, length: int) -> int:
        """The hash of the first `length` tokens (see tokens.proto)."""
        if length < self._num_hashed:
            return prefix_hash(self.token_ids[:length])
        self._hasher.update(_packed(self.token_ids[self._num_hashed : length]))
        self._num_hashed = min(length, len(self))
        return int.from_bytes(self._hasher.digest(), "little")

    def span(self, start: int) -> TokenSpan:
        """The span that brings a worker which holds `start` tokens up to date."""
        return TokenSpan(start, self.prefix_hash(start), self.token_ids[start:])

    def sync(self, span: TokenSpan) -> bool:
        """Apply a span; False, and nothing changed, when what is before it cannot be vouched for.

        That is when it starts behind the end, or when the hash of what is before it differs.
        """
        if span.start > len(self) or self.prefix_hash(span.start) != span.prefix_hash:
            return False
        self.token_ids[span.start :] = array("I", span.token_ids)
        if span.start < self._num_hashed:
            self._num_hashed, self._hasher = 0, _new_hasher()
        return True


def prefix_hash(token_ids: "array[int]") -> int:
    """BLAKE2b-64 over little-endian 4-byte ids, read as a little-endian integer (tokens.proto)."""
    hasher = _new_hasher()
    hasher.update(_packed(token_ids))
    return int.from_bytes(hasher.digest(), "little")


def _new_hasher() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=8)


def _packed(token_ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids.tobytes()


def common_length(a: "array[int]", b: "array[int]") -> int:
    """How many leading tokens are equal."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])
