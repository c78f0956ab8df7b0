"""Models and heads with rows for tokens that do not exist, as many have them (CASES 42)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eagle_heads import HeadFiles, random_eagle1_head, random_head
from medusa_heads import LAYOUTS, random_medusa
from other_tokenizers import byte_level_files
from served_pair import Pair
from tiny_models import save_checkpoint, tiny_config
from transformers import AutoModelForCausalLM
from worker_servers import cluster

from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.table_model import VOCAB_SIZE

NUM_PADDING = 8
NUM_ROWS = VOCAB_SIZE + NUM_PADDING


def save_padded(directory: Path, num_tokens: int = VOCAB_SIZE) -> Path:
    """A tiny random model whose rows of padding are the likeliest by far."""
    save_checkpoint(directory, tiny_config(num_tokens + NUM_PADDING))
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        model.lm_head.weight[-NUM_PADDING:] = 30 * torch.randn(NUM_PADDING, 16)
    model.save_pretrained(directory)
    return directory


def eagle_3(target: Path, folder: Path) -> Pair:
    head = random_head(NUM_ROWS, NUM_ROWS, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return Pair(target, with_large_padding(head).write(folder))


def eagle_1(target: Path, folder: Path) -> Pair:
    return Pair(target, random_eagle1_head(NUM_ROWS).write(folder))


def medusa(layout: str) -> Callable[[Path, Path], Pair]:
    def pair(target: Path, folder: Path) -> Pair:
        return Pair(target, random_medusa(NUM_ROWS).write(folder, layout), "medusa")

    return pair


def with_large_padding(head: HeadFiles) -> HeadFiles:
    head.tensors["lm_head.weight"][-NUM_PADDING:] *= 50
    return head


PAIRS: dict[str, Callable[[Path, Path], Pair]] = {
    "eagle 3": eagle_3,
    "eagle 1": eagle_1,
    **{f"medusa {layout}": medusa(layout) for layout in LAYOUTS},
    "early-exit": lambda target, _: Pair(target, None, "early-exit"),
    "draft-model": lambda target, _: Pair(target, None, "draft-model"),
}


async def check(pair: Pair, **settings: str) -> None:
    async with cluster([pair.target()], [pair.draft(**settings)]) as running:
        await running.until_ready()
        for temperature in (0.0, 1.0):
            drafted, _ = await pair.both(running, temperature=temperature)
            stats = drafted.generation.stats
            assert stats.num_draft_tokens > 20
            assert not stats.draft_failures, "every draft was a token"
            assert max(drafted.token_ids) < VOCAB_SIZE


@pytest.mark.parametrize("kind", PAIRS)
async def test_no_row_of_padding_is_ever_a_token(kind: str, tmp_path: Path) -> None:
    await check(PAIRS[kind](save_padded(tmp_path / "target"), tmp_path / "head"))


@pytest.mark.parametrize("draft_tree", ["static", "dynamic"])
async def test_nor_is_one_in_a_tree(draft_tree: str, tmp_path: Path) -> None:
    await check(eagle_3(save_padded(tmp_path / "target"), tmp_path / "head"), draft_tree=draft_tree)


async def test_nor_where_the_draft_has_other_tokens(tmp_path: Path) -> None:
    files = byte_level_files()
    draft = save_padded(tmp_path / "draft", len(Vocabulary("draft", files)))
    for file in files:
        (draft / file.name).write_bytes(file.content)
    target = save_padded(tmp_path / "target")
    pair = Pair(target, None, "draft-model")
    await check(pair, model=str(draft), target_tokenizer=str(target))
