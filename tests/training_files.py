"""What a training of a tiny drafter is given: a tiny target, text as the target might write it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_models import save_checkpoint, tiny_config
from transformers import AutoModelForCausalLM

from draft_service.training.settings import TrainingSettings

NUM_LAYERS = 6
SHARED = (1, 9, 9, 5)
"""What all sequences begin with, as with a chat template's instructions."""


def tiny_target(directory: Path) -> Path:
    """A random Llama with layers enough for EAGLE-3's features, and sure of what it says."""
    config = tiny_config()
    config.num_hidden_layers = NUM_LAYERS
    save_checkpoint(directory, config)
    module = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        module.get_input_embeddings().weight.mul_(30)
        module.get_output_embeddings().weight.mul_(60)
    module.save_pretrained(directory)
    return directory


def write_text(
    path: Path, target: Path, num_sequences: int = 12, answer_length: int = 20, seed: int = 0
) -> Path:
    """Answers of the target to random prompts, greedy ones and others by turns, as an `.npz`."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_pretrained(target).eval()
    numbers = np.random.default_rng(seed)
    sequences, answer_starts, temperatures = [], [], []
    for index in range(num_sequences):
        prompt = [*SHARED, *numbers.integers(3, module.config.vocab_size, size=2 + index % 5)]
        is_greedy = index % 2 == 0
        sequences.append(_answered(module, prompt, answer_length + index % 3, is_greedy))
        answer_starts.append(len(prompt))
        temperatures.append(0.0 if is_greedy else 1.0)
    np.savez(
        path,
        ids=np.concatenate(sequences).astype(np.uint16),
        lens=np.array([len(ids) for ids in sequences], np.uint16),
        resp=np.array(answer_starts, np.uint16),
        temp=np.array(temperatures, np.float16),
    )
    return path


@torch.inference_mode()
def _answered(
    module: torch.nn.Module, prompt: list[int], length: int, is_greedy: bool
) -> list[int]:
    ids = list(prompt)
    for _ in range(length):
        logits = module(torch.tensor([ids])).logits[0, -1]
        choice = logits.argmax() if is_greedy else torch.softmax(logits, -1).multinomial(1)
        ids.append(int(choice))
    return ids


def settings_for(output: Path, target: Path, text: Path, **values: Any) -> TrainingSettings:
    """Of a training that takes a second or two."""
    return TrainingSettings(
        **{
            "output": str(output),
            "model": str(target),
            "data": str(text),
            "draft_vocab_size": 30,
            "tokens_per_step": 40,
            "evaluate_every": 3,
            "held_out_share": 0.2,
            "num_threads": 1,
            **values,
        }
    )


def entries(output: Path) -> list[dict[str, Any]]:
    """What it recorded, step by step."""
    return [json.loads(line) for line in (output / "progress.jsonl").read_text().splitlines()]
