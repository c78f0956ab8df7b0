"""Training from text to a head that serves: resumed, repeated, refused."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_files import entries, settings_for, write_text

from draft_service.training import trainer
from draft_service.training.capture import capture_features, hidden_states
from draft_service.training.checkpoint import CHECKPOINT_FILE, load_checkpoint
from draft_service.training.evaluation import Evaluation, Measurement
from draft_service.training.features import open_features
from draft_service.training.openings import Openings
from draft_service.training.own_text import write_own_text
from draft_service.training.pipeline import model_digest, run
from draft_service.training.text import TrainingText, read_text
from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.head_tensors import Target
from paceline.engine.loading import load_model
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.engine.table_model import VOCAB_SIZE
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import read_head_config
from paceline.heads.kind import check_head_kind
from paceline.heads.medusa_config import read_medusa_config


@pytest.mark.parametrize("shape", ["token-residual", "published"])
def test_what_is_trained_is_a_head_that_loads(
    target: Path, text: Path, tmp_path: Path, shape: str
) -> None:
    head = run(settings_for(tmp_path, target, text, shape=shape))
    config = read_head_config(str(head))
    weights = read_head_weights(
        str(head), config, Target("tiny", target, 16, VOCAB_SIZE, 6, has_tied_embeddings=False)
    )
    assert config.feature_layers(6) == (2, 3, 3)
    assert len(weights.target_ids) == 30
    assert [entry["step"] for entry in entries(tmp_path)] == list(
        range(1, len(entries(tmp_path)) + 1)
    )


def test_medusa_heads_are_trained_and_load(target: Path, text: Path, tmp_path: Path) -> None:
    head = str(run(settings_for(tmp_path, target, text, drafter="medusa", unrolled_steps=4)))
    check_head_kind(head, "medusa")
    weights = read_medusa_weights(
        head,
        read_medusa_config(head),
        Target("tiny", target, 16, VOCAB_SIZE, 6, has_tied_embeddings=False),
    )
    assert MedusaHead(weights, VOCAB_SIZE).num_heads == 4
    measured = entries(tmp_path)[-1]["held_out"]
    assert len(measured["losses"]) == 4 and list(measured["tokens_per_pass"]) == ["1", "3"]
    assert entries(tmp_path)[-1]["losses"][0] < entries(tmp_path)[0]["losses"][0]


def test_a_drafter_learns_what_the_target_says(target: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.npz", target, num_sequences=60)
    output = tmp_path / "output"
    values = {"num_epochs": 6, "evaluate_every": 12, "learning_rate": 1e-2}
    run(settings_for(output, target, text, tokens_per_step=60, draft_vocab_size=200, **values))
    measured = [entry["held_out"] for entry in entries(output) if "held_out" in entry]
    first, last = measured[0], measured[-1]
    assert last["losses"][2] < first["losses"][2] - 0.5
    assert last["tokens_per_pass"]["7"] > first["tokens_per_pass"]["7"] + 0.3
    card = (output / "head" / "README.md").read_text()
    assert f"| {last['tokens_per_pass']['7']:.3f} |" in card
    tensors = load_file(output / "head" / "model.safetensors")
    ids = ("d2t", "t2d", "token_residual.token_ids")
    num_parameters = sum(tensor.numel() for n, tensor in tensors.items() if n not in ids)
    assert f"| parameters of the checkpoint | {num_parameters:,} |" in card
    assert (output / "head" / "loss.svg").exists()


def test_the_seed_decides_the_weights(target: Path, text: Path, tmp_path: Path) -> None:
    once, again = (
        run(settings_for(tmp_path / name, target, text, num_epochs=2)) for name in ("a", "b")
    )
    other = run(settings_for(tmp_path / "c", target, text, num_epochs=2, seed=1))
    assert weights_of(once) == weights_of(again)
    assert weights_of(once) != weights_of(other)


def test_training_goes_on_after_a_kill_as_if_nothing_had_happened(
    target: Path, text: Path, tmp_path: Path
) -> None:
    values = {"num_epochs": 12, "evaluate_every": 30}
    whole = run(settings_for(tmp_path / "whole", target, text, **values))
    output = tmp_path / "killed"
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in settings_for(output, target, text, **values)
        if value not in (None, "")
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "draft_service.training", "eagle", *options],
        stderr=subprocess.DEVNULL,
    )
    while not (output / CHECKPOINT_FILE).exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    num_kept = load_checkpoint(output, torch.device("cpu"))
    assert num_kept is not None and num_kept.num_steps < len(entries(tmp_path / "whole"))
    assert weights_of(run(settings_for(output, target, text, **values))) == weights_of(whole)
    assert entries(output) == entries(tmp_path / "whole")


def test_slow_steps_are_kept_before_there_are_many(
    target: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)

    def interrupted(evaluation: Evaluation) -> Measurement:
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(settings_for(tmp_path, target, text, drafter="medusa", evaluate_every=3))
    kept = load_checkpoint(tmp_path, torch.device("cpu"))
    assert kept is not None and kept.num_steps == 2


def test_capturing_goes_on_behind_what_is_there(target: Path, text: Path, tmp_path: Path) -> None:
    loaded = load_model(str(target), dtype="float32", device="cpu")
    read = read_text(text, VOCAB_SIZE)
    layer_ids = (2, 3, 3)
    seen: list[int] = []

    def stop(num_captured: int) -> None:
        seen.append(num_captured)
        if len(seen) == 2:
            raise InterruptedError

    features = open_features(tmp_path, read, 16, (2, 3, 3), "tiny", seed=0)
    with pytest.raises(InterruptedError):
        capture_features(loaded.module, layer_ids, features, stop, chunk=4)
    features = open_features(tmp_path, read, 16, (2, 3, 3), "tiny", seed=0)
    assert features.num_captured == 8
    capture_features(loaded.module, layer_ids, features, seen.append, chunk=4)
    assert seen == [4, 8, 12]
    for index in range(features.num_sequences):
        start, end = features.starts[index], features.starts[index + 1]
        ids = torch.from_numpy(features.ids[start:end].astype(np.int64))
        expected = hidden_states(loaded.module, layer_ids, ids[None])[0].numpy()
        np.testing.assert_allclose(features.states[start:end], expected, rtol=2e-3, atol=2e-3)


def test_a_part_of_the_text_is_learnt_and_captured(
    target: Path, text: Path, tmp_path: Path
) -> None:
    read = read_text(text, VOCAB_SIZE)
    shared = str(tmp_path / "features")
    part = run(settings_for(tmp_path / "part", target, text, features=shared, num_tokens=100))
    digest = model_digest(load_model(str(target), dtype="float32", device="cpu"))
    features = open_features(Path(shared), read, 16, (2, 3, 3), digest, seed=0)
    assert 100 <= features.starts[features.num_captured] < 100 + max(np.diff(read.starts))
    assert "--num-tokens 100" in (part / "README.md").read_text()
    whole = run(settings_for(tmp_path / "whole", target, text, features=shared))
    assert features.num_captured == read.num_sequences
    assert weights_of(whole) != weights_of(part)


def test_an_exit_shares_the_features_of_eagle(target: Path, text: Path, tmp_path: Path) -> None:
    shared = str(tmp_path / "features")
    run(settings_for(tmp_path / "eagle", target, text, features=shared))
    values = {"drafter": "early-exit", "features": shared}
    run(settings_for(tmp_path / "shared", target, text, exit_layer=2, **values))
    with pytest.raises(InvalidConfig, match=r"feat.npy has the shape .* expected \[\d+, 32\]"):
        run(settings_for(tmp_path / "other", target, text, exit_layer=1, **values))


def test_writing_text_goes_on_behind_the_last_whole_batch(target: Path, tmp_path: Path) -> None:
    loaded = load_model(str(target), dtype="float32", device="cpu")
    opening = Openings("tiny", target).empty()

    def write(directory: Path, on_progress: Callable[[int], None]) -> TrainingText:
        return write_own_text(
            directory,
            loaded.module,
            (2, 3, 3),
            lambda index: opening if index < 140 else None,
            loaded.eos_token_ids,
            40,
            100_000,
            seed=3,
            on_progress=on_progress,
        )

    def stop(num_tokens: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write(tmp_path / "stopped", stop)
    assert not (tmp_path / "stopped" / "text.npz").exists()
    numbers: list[int] = []
    whole, stopped = (write(tmp_path / name, numbers.append) for name in ("whole", "stopped"))
    assert len(numbers) == 4 and whole.num_sequences == 140
    assert whole.ids.tolist() == stopped.ids.tolist()
    assert whole.answer_starts.tolist() == stopped.answer_starts.tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 1), ("learning_rate", 1e-3), ("draft_vocab_size", 31), ("num_epochs", 2)],
)
def test_other_settings_do_not_go_on_with_a_training(
    target: Path, text: Path, tmp_path: Path, name: str, value: float
) -> None:
    bind(tmp_path, target, text)
    with pytest.raises(InvalidConfig, match=f"^{name} is {value}, but the training in"):
        run(settings_for(tmp_path, target, text, **{name: value}))


def test_other_text_does_not_go_on_with_a_training(
    target: Path, text: Path, tmp_path: Path
) -> None:
    bind(tmp_path, target, text)
    other = write_text(tmp_path / "other.npz", target, seed=1)
    with pytest.raises(InvalidConfig, match="^data is .* begun with"):
        run(settings_for(tmp_path, target, other))
    with pytest.raises(InvalidConfig, match="ids.npy is not that of the text in the data"):
        run(settings_for(tmp_path / "new", target, other, features=str(tmp_path / "features")))


def bind(output: Path, target: Path, text: Path) -> None:
    run(settings_for(output, target, text))


def weights_of(head: Path) -> bytes:
    return (head / "model.safetensors").read_bytes()


def test_the_target_writes_its_own_text_and_features(target: Path, tmp_path: Path) -> None:
    output = tmp_path / "own"
    run(settings_for(output, target, Path(""), data="", num_tokens=300))
    loaded = load_model(str(target), dtype="float32", device="cpu")
    text = read_text(output / "text.npz", VOCAB_SIZE)
    assert len(text.ids) >= 300
    features = open_features(output / "features", text, 16, (2, 3, 3), model_digest(loaded), None)
    assert features.num_captured == features.num_sequences == text.num_sequences
    for index in range(0, text.num_sequences, 7):
        rows = slice(text.starts[index], text.starts[index + 1])
        ids = torch.from_numpy(text.ids[rows])
        expected = hidden_states(loaded.module, (2, 3, 3), ids[None])[0].numpy()
        np.testing.assert_allclose(features.states[rows], expected, rtol=2e-3, atol=2e-3)
        if text.temperatures[index] == 0:
            start = text.answer_starts[index]
            logits = loaded.module(ids[None]).logits[0]
            assert ids[start:].tolist() == logits[start - 1 : -1].argmax(-1).tolist()


def test_the_command_ends_as_the_training_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "train-drafter"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "paceline train-drafter" in told.stdout and "--draft-vocab-size" in told.stdout
    wrong = subprocess.run(
        [*command, "eagle", "--output", str(tmp_path), "--learning-rate", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "--learning-rate is '0', but should be greater than 0" in wrong.stderr
