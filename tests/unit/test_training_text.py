"""Text that a training can use is read; what it cannot is refused by name."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draft_service.training.features import open_features
from draft_service.training.text import TrainingText, joined, read_text, write_text
from paceline.errors import InvalidConfig

VOCAB = 10


def good() -> dict[str, Any]:
    return {
        "ids": np.array([1, 2, 3, 4, 5, 6], np.uint16),
        "lens": np.array([4, 2], np.uint16),
        "resp": np.array([2, 1], np.uint16),
        "temp": np.array([0, np.nan], np.float16),
    }


def save(path: Path, **changes: Any) -> Path:
    arrays = {name: array for name, array in (good() | changes).items() if array is not None}
    np.savez(path, **arrays)
    return path


def test_a_text_is_read_as_it_was_written(tmp_path: Path) -> None:
    text = read_text(save(tmp_path / "a.npz", kind=np.array([0, 1])), VOCAB)
    assert text.starts.tolist() == [0, 4, 6]
    assert text.answer_starts.tolist() == [2, 1]
    write_text(tmp_path / "b.npz", joined([text, text]))
    twice = read_text(tmp_path / "b.npz", VOCAB)
    assert twice.ids.tolist() == [1, 2, 3, 4, 5, 6] * 2
    assert twice.starts.tolist() == [0, 4, 6, 10, 12]
    assert isinstance(twice, TrainingText) and twice.num_sequences == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": None}, "'ids' is missing"),
        ({"lens": None}, "'lens' is missing"),
        ({"resp": None}, "'resp' is missing"),
        ({"temp": None}, "'temp' is missing"),
        (
            {"ids": np.array([1, 2, 3, 4, 5, 10])},
            "'ids' is token ids from 1 to 10; expected 0 to 9",
        ),
        ({"ids": np.array([1, -2, 3, 4, 5, 6])}, "'ids' is token ids from -2 to 6"),
        ({"ids": np.array([1.0] * 6)}, "'ids' is of type float64"),
        ({"ids": np.ones((2, 3), int)}, r"'ids' is of type int64 and shape \[2, 3\]"),
        ({"lens": np.array([4, 3])}, "'lens' is lengths from 3 whose sum is 7; expected .* 6"),
        ({"lens": np.array([6, 0])}, "'lens' is lengths from 0"),
        ({"lens": np.array([6])}, "'resp' is 2 entries; expected 1 as 'lens'"),
        ({"resp": np.array([2, 3])}, "'resp' is places outside their sequences"),
        ({"resp": np.array([0, 1])}, "'resp' is places outside their sequences"),
        ({"temp": np.array([0.0])}, "'temp' is 1 entries; expected 2 as 'lens'"),
        ({"temp": np.array([0, 1])}, "'temp' is of type int64"),
    ],
)
def test_a_wrong_array_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        read_text(save(tmp_path / "a.npz", **changes), VOCAB)


def test_a_file_that_is_missing_cut_short_or_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read: No such file"):
        read_text(tmp_path / "none.npz", VOCAB)
    whole = save(tmp_path / "a.npz").read_bytes()
    for number, content in enumerate((whole[: len(whole) // 2], b"", b"text", whole[:-1])):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(content)
        with pytest.raises(InvalidConfig, match="is no whole .npz file"):
            read_text(path, VOCAB)
    np.save(tmp_path / "one.npy", good()["ids"])
    with pytest.raises(InvalidConfig, match="is no whole .npz file"):
        read_text(tmp_path / "one.npy", VOCAB)


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", ids=np.array([{}, {}], dtype=object))
    with pytest.raises(InvalidConfig, match="is no whole .npz file"):
        read_text(path, VOCAB)


def test_features_without_room_on_disk_are_refused_at_the_start(tmp_path: Path) -> None:
    read = read_text(save(tmp_path / "a.npz"), VOCAB)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(InvalidConfig, match="features .* cannot be written: File too large"):
            open_features(tmp_path / "features", read, 1 << 20, (2,), "tiny", seed=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
