"""Trees of drafts on small models of transformers: the text is what plain decoding says.

The decode loop, links, verifier and proposer are the real ones, and answers go wrong between them
as in `tests/unit/test_losslessness.py`.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from engine_runs import extend, text
from fakes import Fault, FaultyConnection, FaultyDevice, FixedWorkers
from families import VOCAB_SIZE, family_model
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from lossless_runs import answer, draft, new_sequence
from tree_drafter import TreeDrafter
from virtual_time import run_virtually

from paceline.engine.kv_cache import KVCache
from paceline.engine.sampling import choose_token
from paceline.engine.sequences import EngineSequence
from paceline.engine.transformer import TransformerModel
from paceline.rounds import SequenceSettings
from target_service.verifier import Verifier, VerifierLimits

FAULTS = st.lists(st.sampled_from([*Fault, Fault.NONE]), max_size=3)
KINDS = {"llama": torch.float32, "mistral": torch.bfloat16, "gemma3_text": torch.float32}


@cache
def model_of(kind: str) -> TransformerModel:
    return TransformerModel(family_model(kind, KINDS[kind]), VOCAB_SIZE, 600, 16 * 512)


def plain_text(model: TransformerModel, prompt: list[int], settings: SequenceSettings) -> list[int]:
    """What the model says alone, a token a pass."""
    kv = model.kv_cache.open(prompt[:1], salt="")
    token_ids = list(prompt)
    rows = extend(model, kv, token_ids)
    while True:
        token_ids.append(choose_token(rows[-1], settings, len(token_ids), token_ids))
        is_full = len(token_ids) >= settings.max_length
        if is_full or token_ids[-1] in settings.stop_token_ids:
            break
        rows = extend(model, kv, token_ids[-1:])
    model.kv_cache.release(kv)
    return token_ids[len(prompt) :]


def verifiers(model: TransformerModel) -> Callable[[], Verifier]:
    """Makes one after the other; each lets go of what the one before it held."""
    made: list[Verifier] = []

    def new_verifier() -> Verifier:
        if made:
            made[-1].abandon("")
        made.append(Verifier(model, VerifierLimits(max_speculative_tokens=8)))
        return made[-1]

    return new_verifier


def said(
    model: TransformerModel,
    prompt: list[int],
    settings: SequenceSettings,
    expected: list[int],
    seed: int = 0,
    target_faults: Iterable[Fault] = (),
    draft_faults: Iterable[Fault] = (),
) -> list[int]:
    """The answer with trees that know some of what is expected."""

    def drafter() -> TreeDrafter:
        def following(sequence: EngineSequence, number: int) -> list[int]:
            return expected[len(sequence.log) - len(prompt) :][:number]

        return TreeDrafter(following, VOCAB_SIZE, seed)

    async def run() -> list[int]:
        device = FaultyDevice(verifiers(model), target_faults)
        workers = FixedWorkers(
            [FaultyConnection(device)], [FaultyConnection(draft(drafter, draft_faults))]
        )
        try:
            return await answer(new_sequence(settings, prompt), workers, ((8, 2, 1.0),))
        finally:
            device.stepper.abandon("")

    return run_virtually(run())


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(max_examples=8, deadline=None)
def test_no_tree_and_no_fault_changes_the_text(kind: str, data: st.DataObject) -> None:
    model = model_of(kind)
    length = data.draw(st.sampled_from([1, 30, 500]))
    prompt = text(length, VOCAB_SIZE, seed=data.draw(st.integers(0, 9)))
    settings = SequenceSettings(
        max_length=length + data.draw(st.integers(1, 30)),
        temperature=data.draw(st.sampled_from([0.0, 1.0])),
        seed=data.draw(st.integers(0, 99)),
        stop_token_ids=data.draw(st.sampled_from([(), (5, 6, 7)])),
        prompt_length=length,
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.7])),
    )
    expected = plain_text(model, prompt, settings)
    faults = data.draw(FAULTS), data.draw(FAULTS)
    assert (
        said(model, prompt, settings, expected, data.draw(st.integers(0, 99)), *faults) == expected
    )
    assert model.kv_cache.num_used == 0


def keeps_the_last_branch(cache: KVCache[Any], kv: Any, path: Any) -> None:
    kv.num_tokens += len(path)
    kv.tree = None


def test_a_wrong_row_of_the_kv_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    prompt = text(30, VOCAB_SIZE)
    settings = SequenceSettings(max_length=90, temperature=1.0, seed=3)
    expected = plain_text(model, prompt, settings)
    assert said(model, prompt, settings, expected) == expected
    monkeypatch.setattr(KVCache, "keep_path", keeps_the_last_branch)
    assert said(model, prompt, settings, expected) != expected
