"""The tensors of an EAGLE-3 head, checked one by one.

A head may leave out what its target has: the embeddings, and the output matrix where both have the
same tokens. These, and nothing else, are then read from the target's checkpoint.

Invariant: every tensor that the head needs is there in its right shape, and no other tensor is, or
the checkpoint is refused by the tensor's name.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.engine.eagle_config import HeadConfig
from paceline.engine.safetensors_directory import TensorFiles
from paceline.errors import InvalidConfig

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_TARGET_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The tensors of a head, as they were saved."""

    tensors: dict[str, Tensor]
    """By name; those of the layer without what their names begin with."""
    target_ids: Tensor
    """The target's token of each draft token, int64 `[draft_vocab_size]`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a head was made for."""

    name: str
    directory: Path
    hidden_size: int
    vocab_size: int
    """Rows of its embedding."""
    num_layers: int
    has_tied_embeddings: bool


def check_fits(head: str, config: HeadConfig, target: Target) -> None:
    """Raise `InvalidConfig` when a head was made for a target of another shape."""
    for key, found, what, expected in (
        ("target_hidden_size", config.target_hidden_size, "hidden_size", target.hidden_size),
        ("vocab_size", config.vocab_size, "vocab_size", target.vocab_size),
    ):
        if found != expected:
            raise InvalidConfig(
                f"head {head!r}: its {key} is {found}; expected {expected}, the {what} of the "
                f"model {target.name!r}"
            )
    for layer in config.feature_layers(target.num_layers):
        if not 0 <= layer <= target.num_layers:
            raise InvalidConfig(
                f"head {head!r}: is fed with the input of layer {layer}; the model "
                f"{target.name!r} has {target.num_layers} layers"
            )


def read_head_weights(head: str, config: HeadConfig, target: Target) -> HeadWeights:
    """The tensors of the head in the directory `head`.

    Raises:
        InvalidConfig: a tensor is missing, unexpected, of another shape or type, or holds ids that
            make no sense.
    """
    files = TensorFiles(f"head {head!r}", Path(head).expanduser())
    shapes = _shapes(config)
    layer_shapes = _layer_shapes(config)
    _check_names(head, config, files, set(shapes), set(layer_shapes))
    tensors = {name: _read(head, files, name, shape) for name, shape in shapes.items()}
    for name, shape in layer_shapes.items():
        tensors[name] = _read(head, files, config.layer_prefix + name, shape)
    embedding_shape = (config.vocab_size, config.hidden_size)
    output_shape = (config.draft_vocab_size, config.hidden_size)
    for name, shape in ((EMBEDDING, embedding_shape), (OUTPUT, output_shape)):
        if name in files.names:
            tensors[name] = _read(head, files, name, shape)
        else:
            tensors[name] = _read_from_target(head, name, shape, target)
    return HeadWeights(tensors, _target_ids(head, config, files))


def _shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    return {
        "fc.weight": (config.hidden_size, config.feature_size),
        "norm.weight": (config.hidden_size,),
    }


def _layer_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Without what the names begin with. The projections take embedding and feature together."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "hidden_norm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, 2 * hidden),
        "self_attn.k_proj.weight": (key, 2 * hidden),
        "self_attn.v_proj.weight": (key, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.has_attention_bias:
        biases = {"q": query, "k": key, "v": key, "o": hidden}
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in biases.items()}
    return shapes


def _check_names(
    head: str, config: HeadConfig, files: TensorFiles, names: set[str], layer_names: set[str]
) -> None:
    prefix = config.layer_prefix
    needed = names | {prefix + name for name in layer_names}
    if config.draft_vocab_size < config.vocab_size:
        needed |= {"d2t", OUTPUT}
    missing = sorted(needed - files.names)
    if "layers.0.self_attn.q_proj.weight" in files.names - needed:
        raise InvalidConfig(
            f"head {head!r}: its layer is called 'layers.0', as in heads of EAGLE-1 and EAGLE-2; "
            f"expected {prefix}hidden_norm.weight and what else a head of EAGLE-3 has"
        )
    if missing:
        raise InvalidConfig(
            f"head {head!r}: lacks {len(missing)} tensors, the first {missing[0]!r}"
        )
    unexpected = sorted(files.names - needed - {EMBEDDING, OUTPUT, "d2t", "t2d"})
    if unexpected:
        raise InvalidConfig(
            f"head {head!r}: has {len(unexpected)} tensors that an EAGLE-3 head has no use for, "
            f"the first {unexpected[0]!r}"
        )


def _read(
    what: str,
    files: TensorFiles,
    name: str,
    shape: tuple[int, ...],
    types: tuple[torch.dtype, ...] = _FLOATS,
) -> Tensor:
    tensor = files.read(name)
    if tuple(tensor.shape) != shape:
        raise InvalidConfig(
            f"head {what!r}: the tensor {name!r} has the shape {list(tensor.shape)}; "
            f"expected {list(shape)} by its config.json"
        )
    if tensor.dtype not in types:
        raise InvalidConfig(
            f"head {what!r}: the tensor {name!r} is of type {tensor.dtype}; expected one of "
            f"{', '.join(map(str, types))}"
        )
    return tensor


def _read_from_target(head: str, name: str, shape: tuple[int, ...], target: Target) -> Tensor:
    own = TensorFiles(f"model {target.name!r}", target.directory)
    is_embedding = name == EMBEDDING or target.has_tied_embeddings
    source = _TARGET_EMBEDDING if is_embedding else OUTPUT
    if source not in own.names:
        raise InvalidConfig(
            f"head {head!r}: has no tensor {name!r}, and the model {target.name!r} has no "
            f"{source!r} in its place"
        )
    tensor = own.read(source)
    if tuple(tensor.shape) != shape:
        raise InvalidConfig(
            f"head {head!r}: has no tensor {name!r}; {source!r} of the model {target.name!r} has "
            f"the shape {list(tensor.shape)}, expected {list(shape)}"
        )
    return tensor


def _target_ids(head: str, config: HeadConfig, files: TensorFiles) -> Tensor:
    """`d2t` holds distances: draft token i is the target's i + d2t[i]."""
    target_ids = torch.arange(config.draft_vocab_size)
    if "d2t" in files.names:
        target_ids += _read(
            head, files, "d2t", (config.draft_vocab_size,), (torch.int64, torch.int32)
        )
    lowest, highest = int(target_ids.min()), int(target_ids.max())
    if lowest < 0 or highest >= config.vocab_size:
        raise InvalidConfig(
            f"head {head!r}: the tensor 'd2t' leads to the token ids {lowest} to {highest}; "
            f"expected 0 to {config.vocab_size - 1} from distances, draft id + d2t[draft id]"
        )
    if len(target_ids.unique()) < len(target_ids):
        raise InvalidConfig(
            f"head {head!r}: the tensor 'd2t' leads from two draft ids to one token id; expected "
            "distances, draft id + d2t[draft id]"
        )
    if "t2d" in files.names:
        mask = _read(head, files, "t2d", (config.vocab_size,), (torch.bool,))
        if not torch.equal(mask.nonzero()[:, 0], target_ids.sort().values):
            raise InvalidConfig(
                f"head {head!r}: the tensor 't2d' marks other tokens than those that 'd2t' leads to"
            )
    return target_ids
