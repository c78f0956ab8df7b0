"""EAGLE-3's training-time test: the head runs over its own output, as it will when it drafts.

Step 0 takes the target's features for every row. Step k takes the output of step k - 1 of the same
row, one token further on: row i is then what the head makes of its k-th draft behind the features
of token i. It sees the true rows up to i and its own k rows behind them, so the scores of a step
are causal ones over the keys of step 0 and, beside these, one for each later step: nowhere a mask
over all rows of all steps.

The tokens of the drafts are those of the text (`true_tokens`), or the head's own choices.
"""

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from draft_service.training.batches import Batch
from draft_service.training.eagle import EagleTrainee

NextTokens = Callable[[Tensor, int], Tensor]
"""Of a step's predictions `[num_rows, hidden_size]` and the number k of the next step: the tokens
`[num_rows]` that it embeds."""


def unrolled(
    head: EagleTrainee, batch: Batch, num_steps: int, next_tokens: NextTokens
) -> list[Tensor]:
    """The predictions `[num_rows, hidden_size]` of every step, behind the last norm.

    In step k only rows with k more of their span behind them mean something.
    """
    attention = UnrolledAttention(batch.bounds)
    states, token_ids = head.fed(batch.features), batch.token_ids
    predictions: list[Tensor] = []
    for step in range(num_steps):
        if step:
            token_ids = next_tokens(predictions[-1], step)
        states = head.layer(states, token_ids, batch.positions + step, attention)
        predictions.append(head.normed(states))
    return predictions


def true_tokens(batch: Batch) -> NextTokens:
    """The tokens of the text; behind the end of a span those of the next one, as padding."""

    def following(predictions: Tensor, step: int) -> Tensor:
        return torch.roll(batch.token_ids, -step)

    return following


class UnrolledAttention:
    """Called once for each step, in order; remembers the keys and values of those before."""

    def __init__(self, bounds: tuple[tuple[int, int], ...]) -> None:
        self._bounds = bounds
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[num_rows, num_heads * head_dim]`, by `eagle.Attend`."""
        self._keys.append(key)
        self._values.append(value)
        attended = [self._attended(query[start:end], start, end) for start, end in self._bounds]
        return torch.cat(attended).flatten(1)

    def _attended(self, query: Tensor, start: int, end: int) -> Tensor:
        """Of the rows of one span, `[n, num_heads, head_dim]`."""
        keys, values = ([t[start:end] for t in tensors] for tensors in (self._keys, self._values))
        if len(keys) == 1:
            query, key, value = (t.transpose(0, 1)[None] for t in (query, keys[0], values[0]))
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            return attended[0].transpose(0, 1)
        num_rows, num_heads, head_dim = query.shape
        num_kv_heads = keys[0].shape[1]
        # [num_kv_heads, heads of each, n, head_dim]
        grouped = query.view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        grouped = grouped / sqrt(head_dim)
        before, *own = (t.transpose(0, 1)[:, None] for t in keys)
        mask = torch.ones(num_rows, num_rows, dtype=torch.bool, device=query.device).tril()
        scores = (grouped @ before.mT).masked_fill(~mask, -torch.inf)
        own_scores = [(grouped * key).sum(-1, keepdim=True) for key in own]
        shares = torch.softmax(torch.cat([scores, *own_scores], dim=-1), dim=-1)
        before, *own = (t.transpose(0, 1)[:, None] for t in values)
        attended = shares[..., :num_rows] @ before
        for number, value in enumerate(own):
            attended = attended + shares[..., num_rows + number, None] * value
        return attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)
