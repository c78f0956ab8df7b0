"""The bundled model is converted once, is the model that it says it is, and needs no network."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from real_tokenizers import smollm2_directory
from transformers import AutoTokenizer

from paceline.engine.checkpoints import truncated_checkpoint
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import LoadedModel, load_model

LOAD_OFFLINE = """
import socket, sys
from pathlib import Path

def refuse(*args):
    raise AssertionError(f"network used: {args}")

socket.socket.connect = socket.getaddrinfo = refuse
from paceline.engine.loading import load_model
loaded = load_model(sys.argv[1], dtype="float32", device="cpu", cache_dir=Path(sys.argv[2]))
sys.stdout.write(str(float(sum(weight.double().sum() for weight in loaded.module.parameters()))))
"""


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(DEFAULT_MODEL, dtype="float32", device="cpu")


def start_offline(cache_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD_OFFLINE, DEFAULT_MODEL, str(cache_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_processes_that_need_it_at_once_convert_it_once_without_network(tmp_path: Path) -> None:
    processes = [start_offline(tmp_path) for _ in range(2)]
    sums = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sums[0] == sums[1] != ""
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_it_loads_without_network_from_the_cache(loaded: LoadedModel) -> None:
    process = start_offline(smollm2_directory().parent)
    total = sum(weight.double().sum() for weight in loaded.module.parameters())
    assert float(process.communicate()[0]) == float(total)


def test_it_is_known_by_what_a_worker_must_know(loaded: LoadedModel) -> None:
    assert loaded.name == DEFAULT_MODEL
    assert loaded.vocab_size == 49152
    assert loaded.max_model_len == 8192
    assert loaded.eos_token_ids == {2}
    assert loaded.module.config.num_hidden_layers == 30


def test_its_tokenizer_splits_every_digit_and_keeps_blanks_together(loaded: LoadedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory())
    assert tokenizer.encode("10") == [33, 32]
    assert tokenizer.encode(" ha") == [421]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a   10")) == ["a", "ĠĠĠ", "1", "0"]
    text = "for i in range(10):\n    print('Déjà vu 東京 🙂', i)"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_answers_sensibly(loaded: LoadedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory())
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_dict=False, return_tensors="pt"
    )
    with torch.inference_mode():
        answer = loaded.module.generate(prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt.shape[1] :])


def test_its_first_layers_are_a_draft_with_the_same_tokens(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    target_dir = smollm2_directory()
    draft_dir = truncated_checkpoint(target_dir, 6, tmp_path / "draft")
    draft = load_model(str(draft_dir), dtype="float32", device="cpu")
    assert draft.module.config.num_hidden_layers == 6
    assert draft.tokenizer_files[:3] == loaded.tokenizer_files[:3]
    weights = loaded.module.state_dict()
    assert all(
        torch.equal(value, weights[name]) for name, value in draft.module.state_dict().items()
    )
