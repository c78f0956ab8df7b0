"""The tensors of an EAGLE head, checked one by one.

A head may leave out what its target has: the embeddings, and the output matrix where both have the
same tokens; heads of EAGLE-1 and EAGLE-2 have no output matrix of their own, and those with a token
residual may take the target's rows of their tokens.

Invariant: every tensor that the head needs is there in its right shape, and no other tensor is, or
the checkpoint is refused by the tensor's name.
"""

from dataclasses import dataclass

from torch import Tensor

from paceline.engine import token_residual
from paceline.engine.draft_vocabulary import read_distances
from paceline.engine.feature_projection import FeatureProjection
from paceline.engine.head_tensors import EMBEDDING, OUTPUT, HeadTensors, Target
from paceline.errors import InvalidConfig
from paceline.heads.eagle_config import HeadConfig
from paceline.heads.sizes import check_sizes


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The tensors of a head, as they were saved."""

    tensors: dict[str, Tensor]
    """By name; those of the layer without what their names begin with."""
    target_ids: Tensor
    """The target's token of each draft token, int64 `[draft_vocab_size]`."""
    num_parameters: int
    """Of the head's own, without what it borrows from the target."""


def check_fits(head: str, config: HeadConfig, target: Target) -> None:
    """Raise `InvalidConfig` when a head was made for a target of another shape."""
    check_sizes(head, target, config.sizes)
    for layer in config.feature_layers(target.num_layers):
        if not 0 <= layer <= target.num_layers:
            raise InvalidConfig(
                f"head {head!r}: is fed with the input of layer {layer}; the model "
                f"{target.name!r} has {target.num_layers} layers"
            )


def read_head_weights(
    head: str, config: HeadConfig, target: Target, allow_pickle: bool = False
) -> HeadWeights:
    """The tensors of the head in the directory `head`.

    Raises:
        InvalidConfig: a tensor is missing, unexpected, of another shape or type, or holds ids that
            make no sense.
    """
    files = HeadTensors(head, allow_pickle)
    shapes, layer_shapes = _shapes(config, files.names), _layer_shapes(config)
    _check_names(config, files, set(shapes), set(layer_shapes))
    tensors = {name: files.read(name, shape) for name, shape in shapes.items()}
    for name, shape in layer_shapes.items():
        tensors[name] = files.read(config.layer_prefix + name, shape)
    whole_shape = (config.vocab_size, config.hidden_size)
    tensors[EMBEDDING] = files.read_or_borrow(EMBEDDING, whole_shape, target)
    target_ids = read_distances(files, config.draft_vocab_size, config.vocab_size)
    if config.has_token_residual:
        tensors[token_residual.TABLE] = token_residual.read_token_residual(
            files, tensors[EMBEDDING]
        )
    if config.has_token_residual and OUTPUT not in files.names:
        tensors[OUTPUT] = files.borrow(OUTPUT, whole_shape, target)[target_ids]
    else:
        output_shape = (config.draft_vocab_size, config.hidden_size)
        tensors[OUTPUT] = files.read_or_borrow(OUTPUT, output_shape, target)
    return HeadWeights(tensors, target_ids, files.num_parameters)


def read_projection(
    head: str, config: HeadConfig, target_hidden_size: int, allow_pickle: bool = False
) -> FeatureProjection | None:
    """What a target may put the features through for the head in the directory `head`.

    None for heads of EAGLE-1 and EAGLE-2, whose `fc` takes the token too. Raises `InvalidConfig`.
    """
    if not config.is_eagle3:
        return None
    num_layers = config.feature_size // config.target_hidden_size
    shape = (config.hidden_size, num_layers * target_hidden_size)
    return FeatureProjection.of(HeadTensors(head, allow_pickle).read("fc.weight", shape))


def _shapes(config: HeadConfig, names: set[str]) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    if config.is_eagle3:
        return {"fc.weight": (hidden, config.feature_size), "norm.weight": (hidden,)}
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 2 * hidden)}
    if config.has_fc_bias or (config.has_fc_bias is None and "fc.bias" in names):
        shapes["fc.bias"] = (hidden,)
    return shapes


def _layer_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Without what the names begin with.

    The projections of EAGLE-3 take embedding and feature together, and norms of both.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    width = 2 * hidden if config.is_eagle3 else hidden
    shapes: dict[str, tuple[int, ...]] = {
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, width),
        "self_attn.k_proj.weight": (key, width),
        "self_attn.v_proj.weight": (key, width),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.is_eagle3:
        shapes |= {"input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    sizes = {"q": query, "k": key, "v": key, "o": hidden}
    for name in config.attention_biases:
        shapes[f"self_attn.{name}_proj.bias"] = (sizes[name],)
    return shapes


def _check_names(
    config: HeadConfig, files: HeadTensors, names: set[str], layer_names: set[str]
) -> None:
    prefix = config.layer_prefix
    needed = names | {prefix + name for name in layer_names}
    if not config.is_eagle3:
        if "midlayer.self_attn.q_proj.weight" in files.names:
            raise files.refused(
                "its layer is called 'midlayer', as in heads of EAGLE-3, but its config.json has "
                "no draft_vocab_size as those have; expected the tokens that it can propose"
            )
        files.check_names("an EAGLE-1 or EAGLE-2 head", needed, {EMBEDDING, OUTPUT})
        return
    if "layers.0.self_attn.q_proj.weight" in files.names - needed:
        raise files.refused(
            "its layer is called 'layers.0', as in heads of EAGLE-1 and EAGLE-2, but its "
            f"config.json is that of EAGLE-3; expected {prefix}hidden_norm.weight and what else "
            "such a head has"
        )
    if config.draft_vocab_size < config.vocab_size:
        needed |= {"d2t"} if config.has_token_residual else {"d2t", OUTPUT}
    if config.has_token_residual:
        needed |= token_residual.NAMES
    files.check_names("an EAGLE-3 head", needed, {EMBEDDING, OUTPUT, "d2t", "t2d"})
