"""What a target and a draft with an EAGLE head must agree on, over real gRPC."""

from pathlib import Path

from aligned_head import HIDDEN, aligned_head, save_target
from eagle_heads import random_eagle1_head, random_head
from served_pair import Pair
from tiny_models import save_checkpoint
from worker_servers import cluster, draft_server

from paceline.engine.table_model import VOCAB_SIZE


async def test_features_are_sent_as_they_are_to_a_draft_that_is_told_so(tmp_path: Path) -> None:
    head = aligned_head().write(tmp_path / "head")
    pair = Pair(save_target(tmp_path / "target"), head)
    targets = [pair.target(), pair.target(feature_layers=(2, 1, 0), head="")]
    for target, is_projected, size in zip(
        targets, (True, False), (HIDDEN, 3 * HIDDEN), strict=True
    ):
        async with cluster([target], [pair.draft(feature_projection=is_projected)]) as running:
            await running.until_ready()
            assert running.pool.model is not None
            assert running.pool.model.feature_size == size
            drafted, _ = await pair.both(running)
            stats = drafted.generation.stats
            assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 40


async def test_a_target_that_sends_features_in_another_form_is_told_by_name(tmp_path: Path) -> None:
    head = aligned_head().write(tmp_path / "head")
    other = aligned_head()
    other.tensors["fc.weight"] *= 2
    target = save_target(tmp_path / "target")
    pair, others = Pair(target, head), Pair(target, other.write(tmp_path / "other"))
    drafts = [
        pair.draft(feature_projection=False),
        others.draft(),
        draft_server("suffix"),
    ]
    async with cluster([pair.target()], drafts) as running:
        await running.until_ready(2)
        reason = await running.until_refused(0)
        assert (
            "is fed with features as they are; the target sends them through the matrix" in reason
        )
        reason = await running.until_refused(1)
        assert "is fed with features through the matrix" in reason
        assert "both are told the same --head" in reason


async def test_a_target_that_keeps_other_layers_is_told_by_name(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target")
    three = random_head(VOCAB_SIZE, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    pairs = [
        Pair(target, three.write(tmp_path / "3")),
        Pair(target, random_eagle1_head(VOCAB_SIZE).write(tmp_path / "1")),
    ]
    drafts = [pairs[1].draft(), draft_server("suffix")]
    async with cluster([pairs[0].target()], drafts) as running:
        await running.until_ready(2)
        assert "layers 3; the target keeps those of 0, 1, 2" in await running.until_refused(0)
