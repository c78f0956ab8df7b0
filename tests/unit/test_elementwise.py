"""Rows of elementwise functions and rotary tables do not depend on their neighbours."""

import pytest
import torch
from torch.nn import functional

from paceline.engine.elementwise import RotaryTable, apply_row_exact

pytestmark = pytest.mark.usefixtures("several_threads")


@pytest.mark.parametrize("width", [7, 64, 88, 1530, 1536, 40000])
def test_a_row_has_the_same_bits_for_any_number_of_rows(width: int) -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(70, width)
    rows = apply_row_exact(functional.silu, x)
    torch.testing.assert_close(rows, functional.silu(x))
    for num_rows in (1, 2, 3, 21, 22, 43, 69):
        assert torch.equal(apply_row_exact(functional.silu, x[:num_rows]), rows[:num_rows])
        assert torch.equal(apply_row_exact(functional.silu, x[-num_rows:]), rows[-num_rows:])


def test_shapes_are_kept() -> None:
    x = torch.randn(1, 5, 3, 10)
    assert torch.equal(apply_row_exact(torch.neg, x), -x)


def test_a_rotary_table_holds_what_the_module_computes() -> None:
    frequencies = torch.tensor([1.0, 0.1, 0.01])

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None] * frequencies
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    table = RotaryTable(forward, num_positions=600)
    positions = torch.tensor([[599, 0, 513]])
    cos, sin = table(torch.zeros(1), positions)
    torch.testing.assert_close(cos, (positions[..., None] * frequencies).cos())
    torch.testing.assert_close(sin, (positions[..., None] * frequencies).sin())
