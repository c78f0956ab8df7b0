"""From which targets the training of a drafter can begin, and with what it begins."""

import pytest
import torch
from engine_runs import text
from families import FAMILIES, VOCAB_SIZE, family_model

from draft_service.training.batches import Batch
from draft_service.training.draft_model import StudentTrainee, student_of
from draft_service.training.eagle import initial_weights
from draft_service.training.early_exit import ExitTrainee
from draft_service.training.pipeline import check_layers
from draft_service.training.unrolling import true_tokens
from paceline.errors import InvalidConfig

NUM_LAYERS = 3
SPLIT = 45
"""Rows of the first of two spans; the families' windows have 40 tokens."""


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


@pytest.mark.parametrize(("family", "name"), [("gpt2", "layers"), ("gpt_neox", "norm")])
def test_a_target_that_is_put_together_otherwise_is_refused(family: str, name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"'{family}' has no {name} in its decoder"):
        check_layers(family_model(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_in_the_place_of_the_last_layer_is_the_target(family: str) -> None:
    module = family_model(family)
    check_layers(module)
    trainee = ExitTrainee(module.base_model, NUM_LAYERS - 1, slice(0, 48))
    batch, states = spans(module)
    with torch.inference_mode():
        (said,) = trainee.predictions(batch, 1, true_tokens(batch))
    torch.testing.assert_close(said, states, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_with_all_layers_is_the_target(family: str) -> None:
    module = family_model(family)
    trainee = StudentTrainee(student_of(module, NUM_LAYERS))
    batch, states = spans(module)
    with torch.inference_mode():
        (said,) = trainee.predictions(batch, 1, true_tokens(batch))
    torch.testing.assert_close(said, states, atol=1e-4, rtol=0)


def spans(module: torch.nn.Module) -> tuple[Batch, torch.Tensor]:
    """Two spans, with the inputs of the target's last layer; and its last states at their rows."""
    pieces = [text(SPLIT + 1, VOCAB_SIZE, seed=0), text(71, VOCAB_SIZE, seed=1)]
    with torch.inference_mode():
        outputs = [
            module.base_model(torch.tensor([ids]), output_hidden_states=True) for ids in pieces
        ]
    inputs = [output.hidden_states[NUM_LAYERS - 1][0] for output in outputs]
    lasts = [output.last_hidden_state[0, 1:] for output in outputs]
    rows = [len(ids) - 1 for ids in pieces]
    batch = Batch(
        features=torch.cat([states[1:] for states in inputs]),
        before=torch.stack([states[:1] for states in inputs]),
        first_ids=torch.tensor([ids[0] for ids in pieces]),
        token_ids=torch.tensor([token for ids in pieces for token in ids[1:]]),
        teacher_states=torch.cat(lasts),
        positions=torch.cat([torch.arange(number) for number in rows]),
        offsets=torch.cat([torch.arange(number) for number in rows]),
        bounds=((0, rows[0]), (rows[0], sum(rows))),
    )
    return batch, torch.cat(lasts)
