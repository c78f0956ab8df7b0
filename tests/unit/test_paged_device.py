"""A pass on a device that is not the host's: all that it touches lies there.

Torch's `meta` device stands for a card: it knows shapes and types, computes nothing, and so shows
what would be mixed up, and that the real `varlen_attn` takes the call.
"""

from functools import partial
from typing import Any

import pytest
import torch
from families import VOCAB_SIZE, family_model

from paceline.engine.attention_shape import AttentionShape
from paceline.engine.device import CpuDevice
from paceline.engine.kv_cache import KVCache
from paceline.engine.model import PassSequence
from paceline.engine.paged.kernels import GatheredKernel, PagedKernel
from paceline.engine.paged.varlen import VarlenKernel
from paceline.engine.pass_plan import plan_pass
from paceline.engine.pass_runner import PassRunner

MAX_LENGTH = 1024


class Elsewhere(CpuDevice):
    """A device beside the host, of which only shapes are known."""

    torch_device = torch.device("meta")
    linear_rows = 128
    packs_weights = False
    pages_kv = True


def runner(monkeypatch: pytest.MonkeyPatch, model_type: str, kernel: PagedKernel) -> PassRunner:
    """Runs passes of a model there, which are captured."""
    monkeypatch.setattr("paceline.engine.linear.has_exact_rows", lambda *_: True)
    monkeypatch.setattr("paceline.engine.pass_runner.choose_kernel", lambda *_: kernel)
    module = family_model(model_type, torch.bfloat16).to("meta")
    return PassRunner(module, MAX_LENGTH, True, (1, 2), Elsewhere(), None, 4096)


SHAPE = AttentionShape(3, 6, 2, 16)
KERNELS: dict[str, Any] = {
    "flash": partial(VarlenKernel, MAX_LENGTH),
    "gathered": partial(GatheredKernel, SHAPE, MAX_LENGTH, None),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3", "gemma3_text"])
def test_a_pass_with_trees_and_its_kv_touch_nothing_on_the_host(
    monkeypatch: pytest.MonkeyPatch, model_type: str, kernel: str
) -> None:
    made = runner(monkeypatch, model_type, KERNELS[kernel]())
    cache: KVCache[Any] = KVCache(made.storage, 16)
    text = [1] * 300
    first = cache.open(text, salt="")
    assert cache.reserve(first, 310)
    first.num_tokens = 300
    cache.register(first, text)
    second = cache.open([*text, 2], salt="")
    assert second.num_tokens == 288 and cache.reserve(second, 310)
    batch = [
        PassSequence(first, [1, 2, 3, 4], 4, (-1, 0, -1)),
        PassSequence(second, [1] * 13, 1),
    ]
    logits, features = made.run(plan_pass(batch, made.storage))
    first.num_tokens += 1
    cache.keep_path(first, [0, 1])
    found = (logits, features, first.storage.feature_rows(0, 303))
    assert [tuple(part.shape) for part in found] == [(5, VOCAB_SIZE), (128, 96), (303, 96)]
    assert {part.device.type for part in found} == {"meta"}
