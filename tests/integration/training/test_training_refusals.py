"""A training that cannot work, or would go on with what is not its own, says so and ends."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save
from training_files import settings_for

from draft_service.training import token_residual
from draft_service.training.checkpoint import CHECKPOINT_FILE, MANIFEST_FILE, owned
from draft_service.training.features import filled_alone, open_features
from draft_service.training.pipeline import run
from draft_service.training.saved_head import check_numbers
from draft_service.training.text import read_text
from paceline.engine.table_model import VOCAB_SIZE
from paceline.errors import InvalidConfig


def refusal(output: Path, target: Path, text: Path, **values: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        run(settings_for(output, target, text, **values))
    return refused.value.message


def saved(path: Path, sequences: list[list[int]]) -> Path:
    np.savez(
        path,
        ids=np.concatenate(sequences),
        lens=np.array([len(ids) for ids in sequences]),
        resp=np.ones(len(sequences), np.int64),
        temp=np.zeros(len(sequences), np.float32),
    )
    return path


SOME = [1, 9, 9, 5, 4, 7, 8, 9, 10]


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "early-exit", "draft-model"])
@pytest.mark.parametrize(
    ("sequences", "said"),
    [
        ([SOME], "the text has 1 sequence; expected at least 2"),
        ([[1, 2]] * 4, "sequences to learn from has 2 tokens"),
        ([SOME] * 4, "and all begin with the same 9; expected one of 10"),
        ([[1, 2]] * 4 + [SOME] * 2, "the longest of the 1 sequences to measure with has 2 tokens"),
    ],
    ids=["one", "short", "equal", "nothing to measure with"],
)
def test_text_that_teaches_nothing_is_refused(
    target: Path, tmp_path: Path, drafter: str, sequences: list[list[int]], said: str
) -> None:
    text = saved(tmp_path / "text.npz", sequences)
    assert said in refusal(tmp_path / "output", target, text, drafter=drafter)


def test_prompts_that_are_all_too_long_are_refused(target: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "' + "x " * 500 + '"}\n')
    message = refusal(tmp_path / "output", target, Path(""), data="", prompts=str(prompts))
    assert "all are longer than 64 tokens" in message


def test_a_learning_rate_that_is_too_high_is_noticed_and_nothing_is_saved(
    target: Path, text: Path, tmp_path: Path
) -> None:
    message = refusal(tmp_path, target, text, learning_rate=1e30)
    assert message.startswith("the loss is no number in step 2; expected a learning_rate")
    assert not (tmp_path / CHECKPOINT_FILE).exists() and not (tmp_path / "head").exists()
    with pytest.raises(InvalidConfig, match="the trained 'fc.weight' holds numbers that are too"):
        check_numbers({"fc.weight": torch.tensor([1e6]).half()})


def test_two_trainings_do_not_share_an_output(target: Path, text: Path, tmp_path: Path) -> None:
    with owned(tmp_path):
        command = [sys.executable, "-m", "draft_service.training", "--output", str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert f"another training is running in {str(tmp_path)!r}" in second.stderr
    run(settings_for(tmp_path, target, text))


def test_an_output_that_is_a_file_is_refused(target: Path, text: Path) -> None:
    assert "cannot be written: File exists" in refusal(text, target, text)


@pytest.mark.parametrize("name", [CHECKPOINT_FILE, "head"])
def test_what_nobody_knows_the_making_of_is_not_gone_on_with(
    target: Path, text: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    assert f"has a {name}, but no training.json" in refusal(tmp_path, target, text)


def test_files_that_were_damaged_since_are_named(target: Path, text: Path, tmp_path: Path) -> None:
    run(settings_for(tmp_path, target, text))
    (tmp_path / "head").rename(tmp_path / "trained")
    for name, content, said in (
        ("progress.jsonl", b"\xff\n", "progress.jsonl' lacks some of the"),
        ("progress.jsonl", b"7\n", "progress.jsonl' lacks some of the"),
        (CHECKPOINT_FILE, b"x", "checkpoint.pt' cannot be read: it is no pickle of tensors"),
        ("features/bigrams.npz", b"x", "remove it, it is made again"),
        ("features/captured.json", b"x", "captured.json does not say how many"),
        (MANIFEST_FILE, b"[]", "training.json' holds no object"),
    ):
        path = tmp_path / name
        before = path.read_bytes()
        path.write_bytes(content)
        assert said in refusal(tmp_path, target, text)
        path.write_bytes(before)
    run(settings_for(tmp_path, target, text))


@pytest.mark.parametrize("drafter", ["eagle", "draft-model"])
def test_a_finished_drafter_that_was_damaged_since_is_not_returned(
    target: Path, text: Path, tmp_path: Path, drafter: str
) -> None:
    values = {"drafter": drafter, "num_layers": 2}
    head = run(settings_for(tmp_path, target, text, **values))
    assert run(settings_for(tmp_path, target, text, **values)) == head
    weights, config = head / "model.safetensors", head / "config.json"
    for path, content, said in (
        (weights, weights.read_bytes()[:-1], "its safetensors cannot be read"),
        (config, b"{", "its config.json is not JSON"),
        (weights, save({"other": torch.zeros(1)}), "is not what this training makes"),
    ):
        before = path.read_bytes()
        path.write_bytes(content)
        message = refusal(tmp_path, target, text, **values)
        assert said in message and "without it, the same command writes it again" in message
        path.write_bytes(before)


def test_one_training_at_a_time_fills_shared_features(
    target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared, said = tmp_path / "features", ""
    settings = settings_for(tmp_path / "output", target, text, features=str(shared))
    with ThreadPoolExecutor() as pool:
        with filled_alone(shared, pytest.fail):
            training = pool.submit(run, settings)
            while "Waiting for another training" not in said and not training.done():
                time.sleep(0.01)
                said += capsys.readouterr().err
            assert [path.name for path in shared.glob("*.npy")] == []
        assert training.result().is_dir()


def test_features_that_were_cut_short_are_not_filled_with_zeros(
    target: Path, text: Path, tmp_path: Path
) -> None:
    read = read_text(text, VOCAB_SIZE)
    open_features(tmp_path, read, 16, (2, 3, 3), "tiny", seed=0)
    path = tmp_path / "feat.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidConfig, match="cannot be read"):
        open_features(tmp_path, read, 16, (2, 3, 3), "tiny", seed=0)


def test_a_part_of_a_text_has_a_table_of_its_own(
    target: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_residual, "MAX_TABLE_TOKENS", 20)
    values = {"features": str(tmp_path / "features")}
    run(settings_for(tmp_path / "part", target, text, num_tokens=100, **values))
    shared = run(settings_for(tmp_path / "shared", target, text, **values))
    alone = run(settings_for(tmp_path / "alone", target, text, features=""))
    rows = [
        load_file(head / "model.safetensors")["token_residual.rows"] for head in (shared, alone)
    ]
    assert torch.equal(*rows)


def test_features_of_other_layers_are_refused(target: Path, text: Path, tmp_path: Path) -> None:
    values = {"drafter": "early-exit", "features": str(tmp_path / "features")}
    run(settings_for(tmp_path / "one", target, text, exit_layer=1, **values))
    message = refusal(tmp_path / "other", target, text, exit_layer=4, **values)
    assert "are of the layers [1]; expected [4]" in message


def test_features_that_went_elsewhere_before_a_kill_are_captured_anew(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draft_service.training import own_text

    monkeypatch.setattr(own_text, "BATCH_SIZE", 4)
    output, values = tmp_path / "output", {"data": "", "num_tokens": 300}
    run(settings_for(output, target, Path(""), features=str(tmp_path / "first"), **values))
    # As if killed when the first batch had been moved, and gone on with to another directory.
    states = np.load(tmp_path / "first" / "feat.npy")
    starts = np.load(tmp_path / "first" / "starts.npy")
    for number in range(1, (len(starts) - 1) // 4):
        rows = states[starts[4 * number] : starts[4 * number + 4]]
        np.save(output / "generated" / f"{number:05}.npy", rows)
    run(settings_for(output, target, Path(""), features=str(tmp_path / "second"), **values))
    again = np.load(tmp_path / "second" / "feat.npy")
    np.testing.assert_allclose(again, states, rtol=2e-3, atol=2e-3)
