"""What a model looks like to the verifier and to a drafter: one ragged pass at a time.

Two implementations: `TableModel` (a seeded law, for tests) and `TransformerModel` (a causal
language model from transformers). Both keep the invariant that a row of logits depends, bit for
bit, only on the tokens before it: never on the width of the pass, on the other sequences in it,
or on how the KV before it came to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.engine.device_rows import DeviceRows
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.rounds import SequenceSettings
from paceline.token_tree import Branch, branches

Logits = NDArray[np.float32]
Rows = Logits | DeviceRows
"""Of one sequence; on the device only if it brought settings."""
Features = NDArray[np.float16]
"""Hidden states of tokens `[N, feature_size]`: those of several layers, one behind the other."""


@dataclass(frozen=True, slots=True)
class PassSequence:
    """One sequence's share of a pass: `token_ids` run at positions `kv.num_tokens` onwards."""

    kv: KVSequence[Any]
    token_ids: Sequence[int]
    num_logits: int
    """Logits rows wanted, for the last so many of `token_ids`; 0 for a chunk of a prefill."""
    tree: Sequence[int] = ()
    """The parents of a depth-first tree (`paceline.token_tree`) when the last so many of
    `token_ids` are one; it grows from the token before them, and each of them gets a row."""
    settings: SequenceSettings | None = None
    """By which a model may choose the tokens behind the rows itself (`DeviceRows`, where whoever
    asked finds them); None: the rows are to be looked at."""
    wants_confidence: bool = False
    """Whether it then says, too, how sure it is."""

    @property
    def num_stem(self) -> int:
        """How many of `token_ids` come before the tree."""
        return len(self.token_ids) - len(self.tree)

    def branches(self) -> list[Branch]:
        """The runs of `token_ids` that follow one another, the tokens before the tree included."""
        if not self.tree:
            return [Branch(0, 0, len(self.token_ids))]
        num_stem = self.num_stem
        parents = range(-1, num_stem - 1), (num_stem + parent for parent in self.tree)
        return [*branches([*chain(*parents)])]


class LanguageModel(Protocol):
    """A causal language model and its KV cache, driven by one thread."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model can emit (without padding rows)."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""

    @property
    def kv_cache(self) -> KVCache[Any]:
        """The KV of all sequences of this model."""

    @property
    def feature_size(self) -> int:
        """Numbers in the features of a token; 0 when none are kept."""

    def features(self, kv: KVSequence[Any], start: int, end: int) -> Features:
        """The features of the computed tokens from `start` up to `end`.

        They may change with the next pass: copy what is to be kept.
        """

    def forward(self, batch: Sequence[PassSequence]) -> Sequence[Rows]:
        """Run one pass; return float32 `[num_logits, V]` per sequence, in order.

        Writes the KV of all `token_ids` and advances `kv.num_tokens` by their number. The caller
        has reserved the room (`KVCache.reserve`) and truncates afterwards what it does not keep.
        What a tree holds stays beside the sequence until a path of it is kept
        (`KVCache.keep_path`): it takes the room of its longest path, and `kv.num_tokens` does not
        count it.
        """
