"""What a device says of many rows at once is what the sampler says of each, token for token."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.engine import device_sampling
from paceline.engine.captured_choice import CapturedChoice
from paceline.engine.device_noise import Places, gumbel_of, uniform, uniform_rows
from paceline.engine.device_sampling import (
    LOOK,
    choose_tokens,
    row_parameters,
    stages_of,
)
from paceline.engine.logits_processing import Logits
from paceline.engine.noise import uniform_row
from paceline.engine.sampling import choose_token, confidence
from paceline.rounds import SequenceSettings

VECTORS = json.loads(
    (Path(__file__).parents[2] / "protos" / "noise_vectors.json").read_text(encoding="utf-8")
)
GREEDY = SequenceSettings(max_length=1000)
SAMPLED = replace(GREEDY, temperature=1.0)
META = torch.device("meta")
ALMOST_ONE = math.nextafter(1.0, 0.0)
FILTERS = [
    {},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 1e-30},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 300},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.0},
    {"top_p": ALMOST_ONE},
    {"top_k": 4, "top_p": 0.5},
    {"top_k": 300, "top_p": 0.95, "min_p": 1e-3},
    {"top_k": 40, "top_p": ALMOST_ONE},
]


def places(*rows: tuple[int, int, int]) -> Places:
    """Of seed, choice and position each."""
    fields = [(seed % 2**32, seed // 2**32, choice, position) for seed, choice, position in rows]
    return Places(*torch.tensor(fields).T[:, :, None])


def rows_of(kind: str, num_rows: int, vocab_size: int, rng: np.random.Generator) -> Logits:
    shape = num_rows, vocab_size
    if kind == "tied":
        return rng.integers(0, 4, shape).astype(np.float32)
    if kind == "tiny and huge":  # some are equal only once the highest is subtracted
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-25, 3, shape)).astype(np.float32)
    rows = (rng.standard_normal(shape) * 3).astype(np.float32)
    if kind == "of half precision":
        return torch.from_numpy(rows).bfloat16().float().numpy()
    if kind == "mostly banned":
        rows[:, 1:][rng.random((num_rows, vocab_size - 1)) < 0.9] = -np.inf
    return rows


def said(
    rows: Logits | Tensor, settings: Sequence[SequenceSettings], positions: Sequence[int]
) -> list[tuple[int, float]]:
    (stages,) = {stages_of(each, rows.shape[-1], has_confidence=True) for each in settings}
    parameters = [row_parameters(*pair) for pair in zip(settings, positions, strict=True)]
    fields = torch.tensor(parameters, dtype=torch.float64)
    answers = choose_tokens(torch.as_tensor(rows), fields, stages).tolist()
    return [(int(token_id), share) for token_id, share in answers]


def drawn(
    settings: SequenceSettings, num_rows: int, rng: np.random.Generator
) -> Iterator[SequenceSettings]:
    """The same filters with seeds, choices and temperatures of each row's own."""
    for _ in range(num_rows):
        yield replace(
            settings,
            seed=int(rng.integers(2**64, dtype=np.uint64)),
            choice=int(rng.integers(4)),
            temperature=settings.temperature and float(rng.choice([1e-300, 1e-4, 0.7, 1.0, 2.0])),
        )


@pytest.mark.parametrize("vocab_size", [1, 2, 9, 301, 4999])
@pytest.mark.parametrize(
    "kind", ["random", "tied", "of half precision", "tiny and huge", "mostly banned"]
)
def test_every_row_says_what_the_sampler_says(kind: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for filters in ({"temperature": 0.0}, *FILTERS):
        rows = rows_of(kind, 6, vocab_size, rng)
        settings = [*drawn(replace(SAMPLED, **filters), len(rows), rng)]
        positions = rng.integers(2**32, size=len(rows)).tolist()
        for row, own, position, (token_id, share) in zip(
            rows, settings, positions, said(rows, settings, positions), strict=True
        ):
            assert token_id == choose_token(row, own, position, ()), own
            assert share == pytest.approx(confidence(row, own, position, ()), rel=1e-4)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.95}])
def test_a_whole_vocabulary_says_so_too(filters: dict[str, float]) -> None:
    rng = np.random.default_rng(1)
    settings = [*drawn(replace(SAMPLED, **filters), 8, rng)]
    rows = rows_of("of half precision", 8, 49152, rng)
    expected = [choose_token(row, own, 7, ()) for row, own in zip(rows, settings, strict=True)]
    halves = torch.from_numpy(rows).bfloat16()
    assert [token_id for token_id, _ in said(halves, settings, [7] * 8)] == expected


@pytest.mark.parametrize("vocab_size", [1, 70, 5001, 49152])
@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {}, {"top_p": 0.9}])
def test_a_row_says_the_same_to_the_last_bit_in_any_company(
    vocab_size: int, filters: dict[str, float]
) -> None:
    rng = np.random.default_rng(2)
    rows = rows_of("random", 9, vocab_size, rng)
    settings = [*drawn(replace(SAMPLED, **filters), 9, rng)]
    together = said(rows, settings, range(9))
    alone = [said(rows[i : i + 1], settings[i : i + 1], [i])[0] for i in range(9)]
    assert together == alone
    assert said(rows[2:7], settings[2:7], range(2, 7)) == together[2:7]


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, *FILTERS])
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_choice_is_left_to_be_looked_at_and_harms_no_other(
    filters: dict[str, float], fault: float
) -> None:
    rng = np.random.default_rng(3)
    rows = rows_of("random", 3, 500, rng)
    settings = [*drawn(replace(SAMPLED, **filters), 3, rng)]
    right = said(rows, settings, range(3))
    rows[1, 3 if fault > 0 or math.isnan(fault) else slice(None)] = fault
    token_ids = [token_id for token_id, _ in said(rows, settings, range(3))]
    assert token_ids == [right[0][0], LOOK, right[2][0]]


def test_a_choice_too_close_for_the_quick_logarithm_is_left_to_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = rows_of("random", 2, 500, np.random.default_rng(4))
    for filters, count in ({}, 2), ({"top_k": 100}, 2), ({"top_k": 5}, 0):
        settings = [replace(SAMPLED, seed=seed, **filters) for seed in (1, 2)]
        with monkeypatch.context() as patch:
            patch.setattr(device_sampling, "_MARGIN", 1000.0)
            token_ids = [token_id for token_id, _ in said(rows, settings, [0, 0])]
        assert token_ids.count(LOOK) == count, filters


@pytest.mark.parametrize("vector", VECTORS["noise"])
def test_published_noise_has_the_same_bits(vector: dict[str, int | float | str]) -> None:
    place = places((int(vector["seed"]), vector["choice"], vector["position"]))
    u = uniform(place, torch.tensor([[vector["token"]]]))
    assert u.item() == vector["uniform"]
    assert gumbel_of(u).item() == vector["gumbel"]


def test_published_gumbels_of_extreme_uniforms_have_the_same_bits() -> None:
    us = [math.ldexp(2 * int(vector["k"]) + 1, -53) for vector in VECTORS["gumbel"]]
    assert gumbel_of(torch.tensor(us, dtype=torch.float64)).tolist() == [
        vector["gumbel"] for vector in VECTORS["gumbel"]
    ]


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 49152])
def test_whole_rows_of_uniforms_are_those_of_the_sampler(vocab_size: int) -> None:
    rows = [(2**64 - 1, 2**32 - 1, 2**32 - 1), (0, 0, 0), (11 << 32, 3, 77)]
    uniforms = uniform_rows(places(*rows), vocab_size)
    token_ids = torch.arange(vocab_size).expand(len(rows), -1).flip(1)
    assert torch.equal(uniform(places(*rows), token_ids).flip(1), uniforms)
    for found, (seed, choice, position) in zip(uniforms, rows, strict=True):
        assert np.array_equal(found.numpy(), uniform_row(seed, choice, position, vocab_size))


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 4, "top_p": 0.5}])
def test_what_a_graph_does_touches_nothing_on_the_host(filters: dict[str, float]) -> None:
    """On a device of which only shapes are known; the double of a graph looks at all operations."""
    stages = stages_of(replace(SAMPLED, **filters), 301, has_confidence=True)
    choice = CapturedChoice(META)
    logits = torch.empty(70, 301, dtype=torch.bfloat16, device=META)
    rows = torch.empty(3, dtype=torch.long, device=META)
    answers = choice.choose(logits, rows, torch.ones(3, 8).double(), stages)
    assert (answers.device, answers.shape) == (META, (3, 2))


def test_what_cannot_be_captured_is_done_without_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("no graphs here")

    monkeypatch.setattr("paceline.engine.captured_choice.EagerGraph", refuse)
    logits = torch.from_numpy(rows_of("random", 5, 301, np.random.default_rng(5)))
    parameters = torch.tensor([row_parameters(SAMPLED, 3)] * 2, dtype=torch.float64)
    stages = stages_of(SAMPLED, 301, has_confidence=False)
    choice = CapturedChoice(torch.device("cpu"))
    for _ in range(2):
        found = choice.choose(logits, torch.tensor([4, 1]), parameters, stages)
        assert torch.equal(found, choose_tokens(logits[[4, 1]], parameters, stages))
    assert len(caplog.messages) == 1
