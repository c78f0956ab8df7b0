"""A language model made of a seed: for tests and demos that must not need torch.

`TableLaw` says what comes after any tokens: a local law of the last two (as of English letters, so
that text repeats itself now and then) plus a small term of everything before. `TableModel` computes
the same through a KV cache that holds token ids, and reads what came before from nowhere else, so a
stale, shifted or missing cell changes every logits row after it.

Knows nothing about torch, nor about how its tokens are spelled (`table_tokenizer`), except that
ids below 256 are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.model import Features, Logits, PassSequence
from paceline.errors import InvalidConfig

BOS_ID = 256
EOS_ID = 257
VOCAB_SIZE = 261
"""256 bytes, then the special tokens of `table_tokenizer`, BOS and EOS first."""

DEFAULT_MAX_MODEL_LEN = 4096

TokenIds = NDArray[np.int64]
Keys = NDArray[np.uint64]

_LETTERS = " etaoinshrdlucmfwygpbvkxqjz"
_LEAD_BYTE = 0xC3
_LOCAL_SCALES = np.array([1.0, 1.5, 2.5, 5.0], np.float32)
"""Standard deviation of the local law: a quarter of the contexts each, from open to decided."""
_DISTANT_SCALE = np.float32(0.6)
_EOS_INTERVAL = 128
_NEVER, _CERTAIN = np.float32(-25.0), np.float32(30.0)


@dataclass(frozen=True, slots=True)
class TableLaw:
    """The law of the next token for every context.

    `disagreement` from 0 to 1 mixes in the logits of an unrelated law: a draft with the target's
    seed and 0.2 mostly agrees with it. A vocabulary smaller than `VOCAB_SIZE` has no letters, only
    noise, and its last id is EOS.
    """

    seed: int
    vocab_size: int = VOCAB_SIZE
    disagreement: float = 0.0

    @classmethod
    def parse(cls, spec: str) -> "TableLaw":
        """Read `table:<seed>` or `table:<seed>:<disagreement>`.

        Raises:
            InvalidConfig: the text is neither.
        """
        name, _, rest = spec.partition(":")
        seed, _, disagreement = rest.partition(":")
        try:
            law = cls(int(seed), disagreement=float(disagreement or 0.0))
        except ValueError:
            law = None
        if name != "table" or law is None or law.seed < 0 or not 0 <= law.disagreement <= 1:
            raise InvalidConfig(
                f"model {spec!r}: expected table:<seed> or table:<seed>:<disagreement>, "
                "with a whole number as seed and a disagreement from 0 to 1"
            )
        return law

    @property
    def eos_token_id(self) -> int:
        """The id that ends a text, after about 100 tokens."""
        return EOS_ID if self.vocab_size >= VOCAB_SIZE else self.vocab_size - 1

    def probabilities(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """The exact law `[V]` of the token after `token_ids` (at least one), at temperature 1."""
        logits = self.logits(np.asarray(token_ids, np.int64), 1)[0].astype(np.float64)
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())

    def logits(self, token_ids: TokenIds, num_logits: int) -> Logits:
        """Logits `[num_logits, V]` after each of the last `num_logits` of `token_ids`."""
        context = _Context.of(token_ids, num_logits)
        logits = self._noise(context, self.seed)
        if self.disagreement > 0:
            share = np.float32(self.disagreement)
            logits = (1 - share) * logits + share * self._noise(context, ~self.seed)
        # The end depends on everything before, so that no text is caught in a loop without one.
        ends = _mixed(context.distant) % np.uint64(_EOS_INTERVAL) == 0
        if self.vocab_size < VOCAB_SIZE:
            logits[:, -1] = _NEVER
        else:
            logits += _text_bias(self.vocab_size)
            logits[context.last == _LEAD_BYTE, 0xA0:0xC0] += _CERTAIN
        logits[ends, self.eos_token_id] = _CERTAIN
        return logits

    def _noise(self, context: "_Context", seed: int) -> Logits:
        num_rows = len(context.last)
        seed_key = _mixed(np.array([seed & (2**64 - 1)], np.uint64))
        keys = _mixed(np.concatenate([context.local, context.distant]) + seed_key)
        noise = _normal(keys[:, None] + np.arange(self.vocab_size, dtype=np.uint64) * _ODD)
        scales = _LOCAL_SCALES[(keys[:num_rows] >> np.uint64(62)).astype(np.intp)]
        return scales[:, None] * noise[:num_rows] + _DISTANT_SCALE * noise[num_rows:]


@dataclass(frozen=True, slots=True)
class _Context:
    """What the law looks at, for each row."""

    last: TokenIds
    local: Keys
    """One number for the last two tokens."""
    distant: Keys
    """One number for all tokens and their places."""

    @classmethod
    def of(cls, token_ids: TokenIds, num_rows: int) -> "_Context":
        places = np.arange(1, len(token_ids) + 1, dtype=np.uint64) << np.uint64(32)
        distant = np.cumsum(_mixed(places + token_ids.astype(np.uint64)), dtype=np.uint64)
        padded = np.concatenate([[-1, -1], token_ids])
        first = len(padded) - num_rows
        before, last = padded[first - 1 : -1], padded[first:]
        local = ((before + 1) << 32 | (last + 1)).astype(np.uint64)
        return cls(last, local, distant[len(distant) - num_rows :])


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(keys: Keys) -> Keys:
    """splitmix64's finaliser (Steele, Lea, Flood, 2014): every bit in moves every bit out."""
    keys = keys * _ODD
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _normal(
    keys: Keys,  # [N, V]
) -> Logits:
    """Nearly normal numbers of variance 1: each the sum of its key's four 16-bit parts."""
    parts = _mixed(keys).view(np.uint16).reshape(*keys.shape, 4)
    # Whole numbers below 2**24: the product is exact, and faster than a sum over a short axis.
    total = parts.astype(np.float32) @ np.ones(4, np.float32) - np.float32(2 * 65535)
    return np.asarray(total * np.float32(3**0.5 / 65536), np.float32)


@cache
def _text_bias(vocab_size: int) -> Logits:
    """What is added to the logits `[V]` of any context: letters by their frequency in English."""
    bias = np.full(vocab_size, _NEVER, np.float32)
    bias[list(_LETTERS.encode())] = -0.15 * np.arange(len(_LETTERS), dtype=np.float32)
    bias[list(_LETTERS.strip().upper().encode())] = -5.0
    bias[[ord(","), ord("."), ord("\n"), _LEAD_BYTE]] = -2.0, -2.0, -4.0, -4.0
    return bias


class TableStorage:
    """The KV of a table model: the token id at every place, -1 where nothing was written."""

    def __init__(self, cell_size: int) -> None:
        self._cell_size = cell_size

    @property
    def cell_size(self) -> int:
        """Tokens per cell."""
        return self._cell_size

    def allocate(self, num_cells: int) -> TokenIds:
        """Storage with nothing written."""
        return np.full(num_cells * self._cell_size, -1, np.int64)

    def grow(self, storage: TokenIds, num_cells: int) -> TokenIds:
        """The same content with room for `num_cells` cells."""
        grown = self.allocate(num_cells)
        self.copy_prefix(storage, grown, len(storage))
        return grown

    def copy_prefix(self, source: TokenIds, target: TokenIds, num_tokens: int) -> None:
        """Copy the first `num_tokens` tokens."""
        target[:num_tokens] = source[:num_tokens]

    def copy_path(
        self, tree: TokenIds, path: Sequence[int], target: TokenIds, num_tokens: int
    ) -> None:
        """Copy these tokens of a tree behind the first `num_tokens` tokens."""
        target[num_tokens : num_tokens + len(path)] = tree[list(path)]


class TableModel:
    """`LanguageModel` of a `TableLaw`, about 70 microseconds a row."""

    def __init__(
        self,
        law: TableLaw,
        *,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
        num_cells: int = 4096,
        cell_size: int = 16,
    ) -> None:
        self.law = law
        self._max_model_len = max_model_len
        self._kv_cache = KVCache(TableStorage(cell_size), num_cells)

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model can emit."""
        return self.law.vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self._max_model_len

    @property
    def kv_cache(self) -> KVCache[TokenIds]:
        """The tokens of all sequences of this model."""
        return self._kv_cache

    @property
    def feature_size(self) -> int:
        """Two numbers for each token."""
        return 2

    def features(self, kv: KVSequence[TokenIds], start: int, end: int) -> Features:
        """Token and place, both modulo 1024, so that a wrong row is known for what it is."""
        rows = np.stack([kv.storage[start:end], np.arange(start, end)], axis=1)
        return (rows % 1024).astype(np.float16)

    def forward(self, batch: Sequence[PassSequence]) -> list[Logits]:
        """Run one pass; see `LanguageModel.forward`.

        Raises:
            IndexError: a token id that is not in the vocabulary, as an embedding would.
            ValueError: more tokens than the caller reserved room for.
        """
        return [self._forward(share) for share in batch]

    def _forward(self, share: PassSequence) -> Logits:
        token_ids = np.asarray(share.token_ids, np.int64)
        if ((token_ids < 0) | (token_ids >= self.vocab_size)).any():
            raise IndexError(f"token ids outside the vocabulary of {self.vocab_size}")
        if share.num_logits > len(token_ids):
            raise ValueError(f"{share.num_logits} logits rows of {len(token_ids)} tokens")
        kv, first_wanted = share.kv, len(token_ids) - share.num_logits
        rows = []
        for first, place, num_tokens in share.branches():
            start, end = kv.num_tokens + place, kv.num_tokens + place + num_tokens
            if end > len(kv.storage):
                raise ValueError(f"{end} tokens in a room reserved for {len(kv.storage)}")
            kv.storage[start:end] = token_ids[first : first + num_tokens]
            num_wanted = min(max(first + num_tokens - first_wanted, 0), num_tokens)
            rows.append(self.law.logits(kv.storage[:end], num_wanted))
        kv.tree = token_ids[share.num_stem :] if share.tree else None
        kv.num_tokens += share.num_stem
        return np.concatenate(rows)
