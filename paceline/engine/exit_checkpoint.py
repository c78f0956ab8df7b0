"""A small trained exit: one more decoder layer and a last norm on top of a model's first layers.

Where a model was not trained to be left early (LayerSkip, arXiv 2404.16710, trains it so), its
first layers say little through its own norm and output matrix; a layer that is trained to lead from
the one to the other says more. Its `config.json` has `model_type: early_exit` and names the exit
layer; its tensors are `layer.*`, called as in a layer of the target, and `norm.weight`. It may have
a draft vocabulary and an output matrix, else the target's is used.

Invariant: every tensor that the exit needs is there in its right shape, and no other tensor is, or
the checkpoint is refused by the tensor's name; a setting is followed or refused by its name.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.engine.draft_vocabulary import read_distances
from paceline.engine.head_tensors import OUTPUT, HeadTensors, Target
from paceline.errors import InvalidConfig
from paceline.heads.config_file import CONFIG_FILE
from paceline.heads.exit_config import ExitConfig
from paceline.heads.sizes import check_sizes

_NORM = "norm.weight"
_LAYER_PREFIX = "layer."


def check_exit_fits(head: str, config: ExitConfig, target: Target) -> None:
    """Raise `InvalidConfig` when an exit was made for a target of another shape."""
    check_sizes(head, target, config.sizes)
    if config.exit_layer >= target.num_layers:
        raise InvalidConfig(
            f"head {head!r}: exit_layer in its {CONFIG_FILE} is {config.exit_layer}; expected 1 to "
            f"{target.num_layers - 1}, less than the layers of {target.name!r}"
        )


def put_exit(
    head: str,
    config: ExitConfig,
    target: Target,
    module: PreTrainedModel,
    allow_pickle: bool = False,
) -> Tensor:
    """Put the exit in place of the last of `module`'s layers, of its norm and its output.

    `module` has one layer more than run before the exit. Returns the target's token of each draft
    token, int64 `[draft_vocab_size]`. Raises `InvalidConfig`.
    """
    files = HeadTensors(head, allow_pickle)
    body: Any = module.model
    layer = {_LAYER_PREFIX + name: p for name, p in body.layers[-1].named_parameters()}
    is_reduced = config.draft_vocab_size < target.vocab_size
    needed = {*layer, _NORM} | ({"d2t"} if is_reduced else set())
    files.check_names("a trained exit", needed, {OUTPUT, "d2t", "t2d"})
    for name, parameter in {**layer, _NORM: body.norm.weight}.items():
        read = files.read(name, tuple(parameter.shape))
        parameter.data = read.to(parameter.device, parameter.dtype)
    target_ids = read_distances(files, config.draft_vocab_size, target.vocab_size)
    output = _output(files, config, target, module, target_ids)
    head_module: Any = module.lm_head
    head_module.weight = nn.Parameter(output, requires_grad=False)
    head_module.out_features = len(output)
    return target_ids


def _output(
    files: HeadTensors,
    config: ExitConfig,
    target: Target,
    module: PreTrainedModel,
    target_ids: Tensor,
) -> Tensor:
    own: Any = module.lm_head
    weight: Tensor = own.weight.data
    if OUTPUT in files.names:
        shape = (config.draft_vocab_size, target.hidden_size)
        return files.read(OUTPUT, shape).to(weight.device, weight.dtype)
    return weight if torch.equal(target_ids, torch.arange(len(weight))) else weight[target_ids]
