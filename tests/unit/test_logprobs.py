"""Log-probabilities of a row against the definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.logprobs import MIN_LOGPROB, token_logprobs

ROWS = st.lists(
    st.one_of(st.floats(-50, 50, width=32), st.sampled_from([0.0, 1.0, -math.inf])),
    min_size=2,
    max_size=30,
).filter(lambda row: max(row) > -math.inf)


@given(ROWS, st.data(), st.integers(0, 40))
def test_they_are_logarithms_of_the_softmax_most_likely_first(
    row: list[float], data: st.DataObject, num_top: int
) -> None:
    token_id = data.draw(st.integers(0, len(row) - 1))
    found = token_logprobs(np.array(row, np.float32), token_id, num_top)
    total = math.fsum(math.exp(logit) for logit in row)
    expected = [
        math.log(math.exp(logit) / total) if logit > -math.inf else MIN_LOGPROB for logit in row
    ]
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))[:num_top]
    assert list(found.top_token_ids) == ranked
    assert found.logprob == pytest.approx(expected[token_id], abs=1e-9)
    assert list(found.top_logprobs) == pytest.approx([expected[id] for id in ranked], abs=1e-9)


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_faulty_row_is_refused(fault: float) -> None:
    with pytest.raises(FloatingPointError, match="The logits hold"):
        token_logprobs(np.array([0, fault, 1], np.float32), 0, 1)


def test_large_logits_are_no_trouble_and_tokens_out_of_reach_have_the_least() -> None:
    row = np.array([3e38, 3e38, -3e38, -np.inf], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        found = [token_logprobs(row, token_id, 4) for token_id in range(4)]
    assert [f.logprob for f in found] == [-math.log(2), -math.log(2), MIN_LOGPROB, MIN_LOGPROB]
    assert found[0].top_token_ids == (0, 1, 2, 3)
