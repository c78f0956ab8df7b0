"""What a token adds to a head's residual stream, while it is trained.

That is what the target itself says behind the token alone, its last state for the two tokens [first
token of every text, token], and the token's embedding, both projected. So an untrained head is the
target's bigram model already and learns the rest, with little text several times as fast as without
(docs/drafters.md).
"""

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from draft_service.training.atomic_files import write_whole
from draft_service.training.draft_vocabulary import most_frequent
from draft_service.training.features import FeatureFiles
from paceline.engine.token_residual import EMBEDDING_PROJECTION
from paceline.errors import InvalidConfig

TABLE_PROJECTION = "token_residual.table_proj.weight"
"""Trained; a checkpoint has the projected table instead."""
FEATURE_SCALE = "fc.scale"
"""Trained; folded into `fc.weight` when the head is saved."""
TABLE_FILE = "bigrams.npz"
MAX_TABLE_TOKENS = 16384
_BATCH = 1024


class TokenResidual:
    """A table of the tokens' own states, and the projections of it and of the embeddings."""

    def __init__(
        self, weights: dict[str, Tensor], table_ids: Tensor, table: Tensor, vocab_size: int
    ) -> None:
        """`table` `[num_table_tokens, hidden_size]` of the tokens `table_ids`."""
        self._weights = weights
        self.table_ids = table_ids
        self._table = table
        # Tokens that have no row find the one of zeros behind all others.
        self._padded = torch.cat((table, table.new_zeros(1, table.shape[1])))
        self._rows = torch.full((vocab_size,), len(table), device=table.device)
        self._rows[table_ids] = torch.arange(len(table), device=table.device)

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """`[num_rows, hidden_size]` of tokens `[num_rows]` and their embeddings."""
        looked_up = F.embedding(self._rows[token_ids], self._padded)
        return F.linear(looked_up, self._weights[TABLE_PROJECTION]) + F.linear(
            embedded, self._weights[EMBEDDING_PROJECTION]
        )

    @torch.no_grad()
    def folded(self, embedding: Tensor) -> Tensor:
        """`[num_table_tokens, hidden_size]`: table and embeddings projected, as a checkpoint has
        it."""
        return F.linear(self._table, self._weights[TABLE_PROJECTION]) + F.linear(
            embedding[self.table_ids], self._weights[EMBEDDING_PROJECTION]
        )


def with_token_residual(weights: dict[str, Tensor], final_norm: Tensor) -> dict[str, Tensor]:
    """Initial weights whose output is little else than the table: other things come in slowly."""
    return weights | {
        "self_attn.o_proj.weight": torch.zeros_like(weights["self_attn.o_proj.weight"]),
        "mlp.down_proj.weight": torch.zeros_like(weights["mlp.down_proj.weight"]),
        # The table's states are behind the target's last norm, which the head applies again.
        TABLE_PROJECTION: torch.diag(final_norm.reciprocal().nan_to_num(posinf=0, neginf=0)),
        EMBEDDING_PROJECTION: final_norm.new_zeros(len(final_norm), len(final_norm)),
        FEATURE_SCALE: final_norm.new_full((1,), 0.01),
    }


def table_of(module: PreTrainedModel, features: FeatureFiles) -> tuple[Tensor, Tensor]:
    """The most frequent tokens of the text and float32 `[num_table_tokens, hidden_size]`, the
    target's states for them; kept beside the features once they are computed."""
    vocab_size = module.config.get_text_config().vocab_size
    token_ids = most_frequent(features.ids.astype("int64"), MAX_TABLE_TOKENS, vocab_size)
    # What a text begins with, in a chat template or not.
    first_token = int(np.bincount(features.ids[features.starts[:-1]]).argmax())
    path = features.directory / TABLE_FILE
    of = np.concatenate(([first_token], token_ids.numpy()))
    states = _kept_states(path, of)
    if states is None:
        states = _bigram_states(module, first_token, token_ids).numpy()
        write_whole(path, partial(np.savez, of=of, states=states))
    table = torch.from_numpy(states.astype(np.float32))
    return token_ids.to(module.device), table.to(module.device)


def _kept_states(path: Path, of: NDArray[np.int64]) -> NDArray[np.float16] | None:
    """What is kept of the first token and the others `of`; None where that is nothing, or of the
    tokens of another part of the text."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            kept: NDArray[np.float16] = file["states"]
            return kept if np.array_equal(file["of"], of) else None
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise InvalidConfig(
            f"{str(path)!r} cannot be used: {error}; remove it, it is made again"
        ) from None


@torch.inference_mode()
def _bigram_states(module: PreTrainedModel, first_token: int, token_ids: Tensor) -> Tensor:
    """Float16, the last state behind the last norm for [first_token, token] of every token."""
    states = []
    for tokens in token_ids.split(_BATCH):
        pairs = torch.stack((torch.full_like(tokens, first_token), tokens), dim=1)
        output: Any = module.base_model(pairs.to(module.device), use_cache=False)
        states.append(output.last_hidden_state[:, 1].half().cpu())
    return torch.cat(states)
