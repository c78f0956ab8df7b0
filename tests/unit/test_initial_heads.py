"""From which targets the training of an EAGLE head can begin."""

import pytest
from families import family_model

from draft_service.training.eagle import initial_weights
from paceline.errors import InvalidConfig


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_layers_like_llamas_are_where_a_head_begins(family: str) -> None:
    weights = initial_weights(family_model(family), 3)
    assert weights["fc.weight"].shape == (48, 3 * 48)
    assert weights["self_attn.q_proj.weight"].shape == (6 * 16, 2 * 48)


@pytest.mark.parametrize(
    ("family", "name"), [("phi3", "self_attn.q_proj"), ("olmo2", "input_layernorm")]
)
def test_other_layers_are_refused_by_the_name_of_what_they_lack(family: str, name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"'{family}' has no {name}.weight in its last layer"):
        initial_weights(family_model(family), 3)
