"""A target of transformers and a draft that runs its first layers, over real gRPC."""

from pathlib import Path

import pytest
import torch
from aligned_head import HIDDEN, next_token
from aligned_head import save_target as save_aligned_target
from served_pair import Pair
from trained_exits import ExitFiles, random_exit, save_target
from worker_servers import cluster

from paceline.engine.table_model import VOCAB_SIZE


def aligned_exit() -> ExitFiles:
    """A layer that adds nothing, like those of the target."""
    inner = 32
    files = ExitFiles(1, settings={"hidden_size": HIDDEN, "draft_vocab_size": VOCAB_SIZE})
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN // 2, HIDDEN), "v": (HIDDEN // 2, HIDDEN)}
    for name, shape in {**shapes, "o": (HIDDEN, HIDDEN)}.items():
        files.tensors[f"layer.self_attn.{name}_proj.weight"] = torch.zeros(shape)
    for name in ("gate", "up"):
        files.tensors[f"layer.mlp.{name}_proj.weight"] = torch.zeros(inner, HIDDEN)
    files.tensors["layer.mlp.down_proj.weight"] = torch.zeros(HIDDEN, inner)
    for name in ("layer.input_layernorm", "layer.post_attention_layernorm", "norm"):
        files.tensors[f"{name}.weight"] = torch.ones(HIDDEN)
    return files


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("is_trained", [False, True], ids=["layers", "trained exit"])
async def test_layers_of_a_random_target_change_nothing_in_the_text(
    tmp_path: Path, temperature: float, is_trained: bool
) -> None:
    head = random_exit(2, 100).write(tmp_path / "exit") if is_trained else None
    pair = Pair(save_target(tmp_path / "target"), head, "early-exit")
    async with cluster([pair.target()], [pair.draft()]) as running:
        await running.until_ready()
        for seed in range(2 if temperature else 1):
            drafted, _ = await pair.both(running, temperature=temperature, seed=seed)
            assert drafted.generation.stats.num_draft_tokens > 20
        await running.until_free()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("is_trained", [False, True], ids=["layers", "trained exit"])
async def test_where_the_other_layers_add_nothing_the_first_are_always_right(
    tmp_path: Path, temperature: float, is_trained: bool
) -> None:
    target = save_aligned_target(tmp_path / "target")
    head = aligned_exit().write(tmp_path / "exit") if is_trained else None
    pair = Pair(target, head, "early-exit")
    async with cluster([pair.target()], [pair.draft()]) as running:
        await running.until_ready()
        drafted, _ = await pair.both(running, temperature=temperature)
        stats = drafted.generation.stats
        assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40
        following = [next_token(token_id) for token_id in drafted.token_ids[:-1]]
        assert drafted.token_ids[1:] == following
