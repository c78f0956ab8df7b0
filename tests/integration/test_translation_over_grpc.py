"""Draft models with other tokens through real services: the text is what the target alone says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from other_tokenizers import KnowingLaw, byte_level_files, sentencepiece_files, table_vocabulary
from table_requests import expected, request
from tiny_models import save_checkpoint, tiny_config
from worker_servers import LAW, answer, cluster, draft_server, target_server

from coordinator.requests import Speculation
from draft_service.config import DraftSettings
from draft_service.drafters.registry import make_drafter
from draft_service.drafters.translated_model import (
    SharedTokenChoice,
    TextChoice,
    TranslatedDrafter,
)
from draft_service.translation.shared_tokens import SharedTokens
from draft_service.translation.vocabulary import Vocabulary
from paceline.engine.table_model import TableModel
from paceline.engine.tokenizer_files import TokenizerFile
from paceline.errors import InvalidConfig

TARGET = table_vocabulary()
FILES: dict[str, Callable[[], list[TokenizerFile]]] = {
    "byte-level": byte_level_files,
    "sentencepiece": sentencepiece_files,
}


def knowing_drafter(kind: str, way: str) -> TranslatedDrafter:
    draft = Vocabulary(kind, FILES[kind]())
    choice: SharedTokenChoice | TextChoice = TextChoice(TARGET, draft)
    if way == "shared":
        choice = SharedTokenChoice(SharedTokens(TARGET, draft, len(draft)))
    return TranslatedDrafter(TableModel(KnowingLaw(LAW, draft)), TARGET, draft, choice)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("way", ["shared", "text"])
async def test_texts_are_the_targets_and_most_drafts_are_accepted(kind: str, way: str) -> None:
    draft = draft_server("draft-model", make_drafter=lambda: knowing_drafter(kind, way))
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        for prompt in ("the rain", "Straße 🙂 né", ""):
            asked = request("draft-model", 4, prompt=prompt, max_tokens=60)
            said = await answer(running.generator, asked)
            assert said.token_ids == expected(asked)
            stats = said.generation.stats
            assert stats.num_accepted_draft_tokens > 0.9 * stats.num_draft_tokens > 20
        await running.until_free()


@pytest.mark.parametrize("way", ["shared", "text"])
async def test_a_seeds_text_is_the_targets_behind_penalties_bias_and_a_dying_draft(
    way: str,
) -> None:
    draft = draft_server("draft-model", make_drafter=lambda: knowing_drafter("byte-level", way))
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        for seed in range(4):
            asked = replace(
                request("draft-model", 4, max_tokens=40, temperature=1.0, seed=seed),
                presence_penalty=0.5,
                logit_bias=((ord("e"), -3.0),),
            )
            plain = replace(asked, request_id=f"off{seed}", speculation=Speculation("off"))
            alone = await answer(running.generator, plain)
            assert (await answer(running.generator, asked)).token_ids == alone.token_ids
            await draft.kill()
            await draft.start()
        await running.until_free()


@pytest.mark.parametrize("way", ["shared", "text"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_at_temperature_0_every_rule_gives_the_targets_text(way: str, rule: str) -> None:
    draft = draft_server("draft-model", make_drafter=lambda: knowing_drafter("byte-level", way))
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("draft-model", 4, max_tokens=40)
        asked = replace(asked, speculation=Speculation("draft-model", 4, rule))
        assert (await answer(running.generator, asked)).token_ids == expected(asked)
        sampled = replace(asked, request_id="sampled", temperature=1.0, seed=3)
        assert len((await answer(running.generator, sampled)).token_ids) > 0


def save_draft(directory: Path, kind: str) -> Path:
    """A tiny random Llama with another tokenizer."""
    files = FILES[kind]()
    save_checkpoint(directory, tiny_config(vocab_size=len(Vocabulary(kind, files))))
    for file in files:
        (directory / file.name).write_bytes(file.content)
    return directory


@pytest.mark.parametrize("kind", FILES)
async def test_a_draft_from_a_directory_is_told_the_targets_tokenizer(
    kind: str, tmp_path: Path
) -> None:
    model = str(save_draft(tmp_path, kind))
    settings = DraftSettings(drafter="draft-model", model=model, target_tokenizer="table:7")
    drafter, info = make_drafter(settings)
    changes = {"model": info.model, "tokenizer_digest": info.tokenizer_digest}
    draft = draft_server("draft-model", make_drafter=lambda: drafter, **changes)
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        for temperature in (0.0, 1.0):
            asked = request("draft-model", 3, max_tokens=30, temperature=temperature, seed=1)
            said = await answer(running.generator, asked)
            assert said.token_ids == expected(asked)
            assert said.generation.stats.num_draft_tokens > 0


async def test_a_draft_that_is_not_told_is_refused_and_hears_how_to_be_used(tmp_path: Path) -> None:
    model = str(save_draft(tmp_path, "byte-level"))
    drafter, info = make_drafter(DraftSettings(drafter="draft-model", model=model))
    changes = {"model": info.model, "tokenizer_digest": info.tokenizer_digest}
    draft = draft_server("draft-model", make_drafter=lambda: drafter, **changes)
    async with cluster([target_server()], [draft]) as running:
        assert "--target-tokenizer" in await running.until_refused(0)


def test_a_directory_with_a_tokenizer_alone_will_do(tmp_path: Path) -> None:
    model = str(save_draft(tmp_path / "draft", "byte-level"))
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in sentencepiece_files():
        (alone / file.name).write_bytes(file.content)
    settings = DraftSettings(drafter="draft-model", model=model, target_tokenizer=str(alone))
    assert isinstance(make_drafter(settings)[0], TranslatedDrafter)
    own = DraftSettings(drafter="draft-model", model=model, target_tokenizer=model)
    assert not isinstance(make_drafter(own)[0], TranslatedDrafter)
    with pytest.raises(InvalidConfig, match="model '/nowhere' is no directory"):
        make_drafter(own.model_copy(update={"target_tokenizer": "/nowhere"}))
