"""Trains an EAGLE-3 head (arXiv 2503.01840) and saves it.

The recipe is the one measured for the default model (docs/drafters.md): the layer begins as the
target's last, the output matrix is the target's and stays, and the head learns to go on from its
own output.
"""

from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from draft_service.training.batches import Batch, Feed
from draft_service.training.distillation import distil
from draft_service.training.eagle import EagleTrainee, initial_weights
from draft_service.training.eagle_export import (
    LAYER_PREFIX,
    Verifier,
    save_published,
    save_with_token_residual,
)
from draft_service.training.features import filled_alone
from draft_service.training.logits_scaling import logits_scaling
from draft_service.training.material import Material
from draft_service.training.token_residual import TokenResidual, table_of, with_token_residual
from draft_service.training.unrolling import NextTokens, unrolled
from paceline.heads.eagle_config import HeadConfig

_PUBLISHED = (
    "An EAGLE-3 head (arXiv 2503.01840) in the layout of vLLM's `speculators`: for "
    "`paceline serve --drafter eagle --head <this directory>` and for vLLM."
)
_WITH_TOKEN_RESIDUAL = (
    "An EAGLE-3 head (arXiv 2503.01840) whose residual stream also gets a row of its own for each "
    "token: for `paceline serve --drafter eagle --head <this directory>`. Other engines do not run "
    "it."
)


class _UnrolledHead:
    """An EAGLE head as `distil` teaches it."""

    max_drafts: int | None = None

    def __init__(self, head: EagleTrainee) -> None:
        self._head = head
        self.weights = head.weights
        self.feed = Feed(slice(0, head.config.feature_size))

    def predictions(self, batch: Batch, num_steps: int, next_tokens: NextTokens) -> list[Tensor]:
        """As `Trainee` says."""
        return unrolled(self._head, batch, num_steps, next_tokens)


def train_eagle(material: Material) -> Path:
    """Train and save the head; returns its directory."""
    module, settings = material.loaded.module, material.settings
    has_token_residual = settings.shape == "token-residual"
    target_ids, embedding = material.target_ids, material.embedding
    config = eagle_config(module, material.layer_ids, len(target_ids), has_token_residual)
    weights = initial_weights(module, len(material.layer_ids))
    residual = None
    if has_token_residual:
        material.progress.say("Computing the target's states for single tokens")
        with filled_alone(material.features.directory, material.progress.say):
            table_ids, table = table_of(module, material.features)
        weights = with_token_residual(weights, weights["norm.weight"])
        residual = TokenResidual(weights, table_ids, table, config.vocab_size)
    write_card = distil(
        material,
        _UnrolledHead(EagleTrainee(config, weights, embedding, residual)),
        settings.unrolled_steps,
        f"EAGLE-3 head for {material.loaded.name}",
        _WITH_TOKEN_RESIDUAL if has_token_residual else _PUBLISHED,
    )
    directory = material.head_directory
    if residual is not None:
        folded = residual.folded(embedding)
        # The output matrix is the target's as it is, so what scales its logits goes into the norm.
        weights = {**weights, "norm.weight": weights["norm.weight"] / logits_scaling(module)}
        return save_with_token_residual(
            directory, config, weights, residual.table_ids, folded, target_ids, write_card
        )
    verifier = Verifier(material.loaded.name, tuple(module.config.architectures or ()))
    draft_matrix = material.output_matrix[target_ids]
    return save_published(
        directory, config, weights, draft_matrix, target_ids, verifier, write_card
    )


def eagle_config(
    module: PreTrainedModel,
    layer_ids: tuple[int, ...],
    draft_vocab_size: int,
    has_token_residual: bool,
) -> HeadConfig:
    """A head with a layer like the target's."""
    config = module.config.get_text_config()
    num_heads = config.num_attention_heads
    return HeadConfig(
        is_eagle3=True,
        layer_prefix=LAYER_PREFIX,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        rms_norm_eps=config.rms_norm_eps,
        attention_biases="",
        has_fc_bias=False,
        norm_before_residual=False,
        has_token_residual=has_token_residual,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        layer_ids=layer_ids,
        rope=dict(config.rope_parameters),
    )
