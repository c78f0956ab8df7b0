"""Ways to compute the same rows of logits, for tests that compare their bits."""

from collections.abc import Sequence

import numpy as np

from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import LanguageModel, Logits, PassSequence


def text(num_tokens: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist()


def extend(
    model: LanguageModel, kv: KVSequence[object], token_ids: Sequence[int], chunk: int = 512
) -> Logits:
    """Run the tokens behind what `kv` holds, `chunk` at a time; return all their rows."""
    assert model.kv_cache.reserve(kv, kv.num_tokens + len(token_ids))
    rows = [
        model.forward([PassSequence(kv, part, len(part))])[0]
        for part in (token_ids[i : i + chunk] for i in range(0, len(token_ids), chunk))
    ]
    return np.concatenate(rows)


def fresh_rows(model: LanguageModel, token_ids: Sequence[int], chunk: int = 512) -> Logits:
    """All rows of a text that no cached KV is used for."""
    kv = model.kv_cache.open(token_ids[:1], salt="")
    rows = extend(model, kv, token_ids, chunk)
    model.kv_cache.release(kv)
    return rows


def same_bits(left: Logits, right: Logits) -> bool:
    """Equality to the last bit, of zeros as well."""
    assert left.dtype == right.dtype == np.float32
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))
