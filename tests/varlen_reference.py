"""What `torch.nn.attention.varlen.varlen_attn` documents, in plain torch, for CPUs.

Written from its docstring and from the checks that FlashAttention makes of its arguments; refuses
whatever those refuse, and what our calls must not have.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn


class VarlenReference:
    """Takes the place of `varlen_attn`, and counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        bound = inspect.signature(varlen_attn).bind(*args, **kwargs)
        bound.apply_defaults()
        self.num_calls += 1
        return _attend(**bound.arguments)


def _attend(
    query: Tensor,  # [total, H, D]
    key: Tensor,  # [pages, page size, num_kv_heads, D]
    value: Tensor,
    cu_seq_q: Tensor,  # [N + 1]
    cu_seq_k: Tensor | None,  # [N + 1]
    max_q: int,
    max_k: int,
    *,
    return_aux: None,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,  # [N]
    block_table: Tensor,  # [N, most pages]
    num_splits: int,
) -> Tensor:
    num_pages, page_size, num_kv_heads, head_dim = key.shape
    numbers = (cu_seq_q, seqused_k, block_table)
    assert all(one.dtype == torch.int32 and one.is_contiguous() for one in numbers)
    assert all(one.stride(-1) == 1 for one in (query, key, value))
    assert return_aux is None and num_splits == 1 and enable_gqa
    assert page_size % 256 == 0 and head_dim % 8 == 0 and head_dim <= 256
    assert len(cu_seq_q) == len(seqused_k) + 1 == len(block_table) + 1 and max_q > 1
    if cu_seq_k is not None:
        assert cu_seq_k.dtype == torch.int32 and len(cu_seq_k) == len(cu_seq_q)
        assert torch.equal(cu_seq_k.diff(), seqused_k)
    assert cu_seq_q[0] == 0 and cu_seq_q[-1] == len(query)
    assert block_table.min() >= 0 and block_table.max() < num_pages
    # "Both ends aligned": the last query stands at the last key.
    left, right = window_size
    assert right == 0, "causal"
    result = torch.empty_like(query)
    for number, (start, end) in enumerate(cu_seq_q.unfold(0, 2, 1).tolist()):
        num_queries, num_keys = end - start, int(seqused_k[number])
        assert 1 < num_queries <= max_q and num_queries <= num_keys <= max_k
        pages = block_table[number, : -(-num_keys // page_size)]
        keys, values = (
            part[pages].flatten(0, 1)[:num_keys].float().transpose(0, 1) for part in (key, value)
        )
        group = query.shape[1] // num_kv_heads
        keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
        own = torch.arange(num_queries)[:, None] + num_keys - num_queries
        distance = own - torch.arange(num_keys)
        is_seen = distance >= 0
        if left >= 0:
            is_seen &= distance <= left
        scores = query[start:end].float().transpose(0, 1) @ keys.transpose(1, 2) * scale
        weights = scores.masked_fill(~is_seen, float("-inf")).softmax(-1)
        result[start:end] = (weights @ values).transpose(0, 1).to(query.dtype)
    return result
