"""The matrices of heads: what they compute, whatever they are kept in."""

import pytest
import torch
from torch.nn import functional as F

from paceline.engine.head_linear import HeadLinear

pytestmark = pytest.mark.usefixtures("several_threads")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 40])
@pytest.mark.parametrize("num_inputs", [64, 24])
def test_a_packed_matrix_computes_what_the_plain_one_does(
    dtype: torch.dtype, num_rows: int, num_inputs: int
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(48, num_inputs, generator=generator)
    bias = torch.randn(48, generator=generator)
    rows = torch.randn(num_rows, num_inputs, generator=generator)
    computed = HeadLinear(weight, bias, dtype)(rows)
    assert computed.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 0.25  # of values around 8
    torch.testing.assert_close(computed, F.linear(rows, weight, bias), atol=tolerance, rtol=0)
