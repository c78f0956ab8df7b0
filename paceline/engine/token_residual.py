"""A residual stream that knows the token from the start: a variant of EAGLE-3's layer.

    EAGLE-3     residual = state + attention
    here        residual = state + attention + token_residual[token]

The rows of frequent tokens are stored, eight bits a number and a scale for each; those of all
others are a projection of their embeddings. Heads of this kind are made by `paceline
train-drafter`; they have no output matrix of their own but the target's rows.

Knows nothing about the rest of the head.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.engine.head_tensors import INTEGERS, HeadTensors

TABLE = "token_residual.table"
"""Name of the whole table, `[vocab_size, hidden_size]`, once it is made."""
EMBEDDING_PROJECTION = "token_residual.embed_proj.weight"
ROWS = "token_residual.rows"
SCALES = "token_residual.scales"
TOKEN_IDS = "token_residual.token_ids"
NAMES = frozenset({EMBEDDING_PROJECTION, ROWS, SCALES, TOKEN_IDS})


def read_token_residual(files: HeadTensors, embedding: Tensor) -> Tensor:
    """Half precision `[vocab_size, hidden_size]`: what each token adds; raises `InvalidConfig`.

    `embedding` `[vocab_size, hidden_size]`: what the tokens without a row are projected from.
    """
    vocab_size, hidden_size = embedding.shape
    num_rows = files.length(TOKEN_IDS)
    token_ids = files.read(TOKEN_IDS, (num_rows,), INTEGERS).long()
    rows = files.read(ROWS, (num_rows, hidden_size), (torch.int8,))
    scales = files.read(SCALES, (num_rows,))
    projection = files.read(EMBEDDING_PROJECTION, (hidden_size, hidden_size)).float()
    if num_rows == 0:
        raise files.refused(f"the tensor {TOKEN_IDS!r} is empty; expected tokens with a row")
    if token_ids.min() < 0 or token_ids.max() >= vocab_size or len(token_ids.unique()) < num_rows:
        raise files.refused(
            f"the tensor {TOKEN_IDS!r} holds the token ids {int(token_ids.min())} to "
            f"{int(token_ids.max())}; expected different ones of 0 to {vocab_size - 1}"
        )
    table = F.linear(embedding.float(), projection).half()
    table[token_ids] = (rows.float() * scales.float()[:, None]).half()
    return table
