"""The `config.json` of Medusa heads (arXiv 2401.10774), in either of two published layouts.

That of the authors counts `medusa_num_heads` and says little else, or it is their target's whole
config with these keys added. That of vLLM counts `num_heads` and may name a smaller vocabulary.
Knows nothing about tensors, imports no torch.

Invariant: a setting that would change what the heads compute is followed or refused by its name.
"""

from dataclasses import dataclass

from paceline.heads.config_file import ConfigReader, read_config_file
from paceline.heads.sizes import Size

_FIXED = {"logit_scale": 1.0}
_OF_THE_TARGET = frozenset(
    {"model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"}
    | {"intermediate_size", "hidden_act", "rms_norm_eps", "attention_bias", "pretraining_tp"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "max_sequence_length"}
)
"""In a config of the authors' they describe the target, which has a config of its own."""
_OF_THE_SEARCH = frozenset({"max_paths", "topk", "max_seq_len", "num_lookahead_tokens"})
"""In a config of vLLM's they are about trees, which are not the heads' business."""


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """What the heads are made of."""

    num_heads: int
    """Tokens that are proposed at once, at least."""
    num_layers: int
    """Residual blocks of each head."""
    hidden_size: int | None
    """None: the target's."""
    vocab_size: int | None
    """Rows of the target's embedding; None: not said."""
    draft_vocab_size: int | None
    """Tokens that the heads can propose; None: all."""
    has_biases: bool
    """Of the residual blocks."""
    shares_output: bool
    """Whether all heads have one output matrix, by vLLM's `original_lm_head`."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What must be the target's, as far as it is said."""
        hidden_size, vocab_size = self.hidden_size, self.vocab_size
        said = [] if hidden_size is None else [Size("hidden_size", hidden_size, "hidden_size")]
        said += [] if vocab_size is None else [Size("vocab_size", vocab_size, "vocab_size")]
        return tuple(said)

    def feature_layers(self, num_target_layers: int) -> tuple[int, ...]:
        """They are fed with what the target's own output matrix is fed with."""
        return (num_target_layers,)


def read_medusa_config(head: str) -> MedusaConfig:
    """The config of the heads in the directory `head`.

    Raises:
        InvalidConfig: there is none, or it asks for something that is not supported.
    """
    reader = ConfigReader(head, read_config_file(head))
    reader.check_fixed(_FIXED)
    sizes = {"hidden_size", "vocab_size", *_FIXED}
    is_authors = reader.get("medusa_num_heads") is not None
    if is_authors:
        own = {"medusa_num_heads", "medusa_num_layers", "base_model_name_or_path", "version"}
        reader.check_known(own | sizes | _OF_THE_TARGET)
        num_heads, num_layers = "medusa_num_heads", "medusa_num_layers"
    else:
        own = {"model_type", "num_heads", "num_hidden_layers", "truncated_vocab_size"}
        reader.check_known(own | sizes | {"original_lm_head", "medusa_fc_bias"} | _OF_THE_SEARCH)
        num_heads, num_layers = "num_heads", "num_hidden_layers"
    config = MedusaConfig(
        num_heads=reader.count(num_heads),
        num_layers=reader.count(num_layers, 1),
        hidden_size=_size(reader, "hidden_size"),
        vocab_size=_size(reader, "vocab_size"),
        draft_vocab_size=_size(reader, "truncated_vocab_size"),
        has_biases=is_authors or reader.flag("medusa_fc_bias"),
        shares_output=reader.flag("original_lm_head"),
    )
    vocab_size, draft_vocab_size = config.vocab_size, config.draft_vocab_size
    if draft_vocab_size is not None and not draft_vocab_size <= (vocab_size or draft_vocab_size):
        expected = f"at most vocab_size, {vocab_size}"
        raise reader.refused("truncated_vocab_size", draft_vocab_size, expected)
    return config


def _size(reader: ConfigReader, key: str) -> int | None:
    return None if reader.get(key) is None else reader.count(key)
