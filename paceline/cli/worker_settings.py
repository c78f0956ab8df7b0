"""What the workers of `paceline serve` are told: settings of their own, made of one for all.

Knows nothing of ports, and starts nothing.
"""

from typing import Any

from paceline.cli.config import ServeSettings
from paceline.cores import num_cores

DEFAULT_MAX_SPECULATIVE_TOKENS = 16
BUNDLED_MODEL = "SmolLM2-135M-Instruct"
"""What workers run when they are told no model."""

KV_MEMORY_FRACTION = 0.25
"""Of what is free when a worker has loaded its model: targets and drafts share the memory of this
machine, or its card, and load at the same time."""

Values = dict[str, Any]
"""Fields of a worker's settings class; None leaves one as it is."""


def target_values(settings: ServeSettings) -> Values:
    """For each target; for all its ranks alike."""
    num_ranks = settings.tensor_parallel_size
    return _common(settings, settings.target_replicas * num_ranks) | {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "head": settings.head_directory if settings.feeds_head else None,
        "allow_pickle": settings.allow_pickle,
        "tensor_parallel_size": num_ranks,
    }


def draft_values(settings: ServeSettings) -> Values:
    """For each draft."""
    num_sharing = settings.draft_replicas
    values: Values = {
        "drafter": settings.method,
        "head": settings.head_directory if settings.feeds_head else None,
        "allow_pickle": settings.allow_pickle,
    }
    if settings.drafter == "early-exit":
        values |= {"head": settings.head, "exit_layer": settings.exit_layer}
    if settings.feeds_head:
        values["draft_tree"] = settings.draft_tree
    if settings.method == "suffix":
        num_sharing = num_cores()  # it computes nothing
    else:
        has_own = settings.drafter == "draft-model"
        values["model"] = settings.draft_model if has_own else settings.model
        if has_own:
            values["target_tokenizer"] = settings.model or BUNDLED_MODEL
    return _common(settings, num_sharing) | values


def rank_variables(rank: int, num_ranks: int, address: str, port: int) -> dict[str, str]:
    """What tells a process which rank of a target it is, as torchrun does; nothing for only one.

    Rank 0 listens for the others on `port`.
    """
    if num_ranks == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _common(settings: ServeSettings, num_sharing: int) -> Values:
    """Of a worker that shares the cores with so many of its kind."""
    return {
        "dtype": settings.dtype,
        "device": settings.device,
        "kv_cache_tokens": settings.kv_cache_tokens,
        "kv_memory_fraction": KV_MEMORY_FRACTION,
        "cache_dir": settings.cache_dir or None,
        "max_speculative_tokens": max(
            DEFAULT_MAX_SPECULATIVE_TOKENS, settings.num_speculative_tokens
        ),
        "num_threads": settings.num_threads or max(1, num_cores() // num_sharing),
    }
