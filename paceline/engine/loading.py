"""Loads the model that `--model` names and says what a worker must know about it.

Knows nothing about where models are found (`model_directory`) nor about how they are run:
attention, KV cache and batches are the business of the caller.

Invariant: a checkpoint is loaded whole, or refused with a sentence that names what is wrong. No
weight is left as it was initialised, no code of a checkpoint is run.
"""

import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from paceline.engine.checkpoints import first_layers, quiet_transformers
from paceline.engine.device import DTYPES, find_torch_device
from paceline.engine.model_directory import first_line, resolve_model
from paceline.engine.tokenizer_files import (
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    TokenizerFile,
    read_tokenizer_files,
    vocabulary_size,
)
from paceline.errors import InvalidConfig

if TYPE_CHECKING:
    from transformers.distributed.configuration_utils import DistributedConfig

logger = logging.getLogger(__name__)

_LOADING_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, StrictDataclassError)
"""What transformers raises over a checkpoint that is not as it should be."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in memory."""

    name: str
    module: PreTrainedModel
    vocab_size: int
    """Ids that the tokenizer knows; the model may have more rows, as padding."""
    max_model_len: int
    """Tokens, prompt and answer together."""
    eos_token_ids: frozenset[int]
    """Any of these ends a text."""
    tokenizer_files: list[TokenizerFile]
    num_parameters: int
    """Tied ones counted once, and of ranks all of them."""


def load_model(
    model: str,
    *,
    dtype: str,
    device: str,
    max_model_len: int | None = None,
    cache_dir: Path | None = None,
    num_layers: int | None = None,
    num_ranks: int = 1,
) -> LoadedModel:
    """Load `model` for inference; `max_model_len` (None: the model's own) may only lower it.

    With `num_layers` only so many of the first layers, without reading the others; with `num_ranks`
    only this rank's share, of the group that torch.distributed knows.

    Raises:
        InvalidConfig: the model, its checkpoint, the data type, the device or the length is wrong.
    """
    torch_dtype, torch_device = _dtype(dtype), find_torch_device(device)
    directory = resolve_model(model, cache_dir)
    config = read_config(model, directory)
    path = Path(model).expanduser()
    length = _max_model_len(model, config, max_model_len)
    kept = None if num_layers is None else first_layers(config, num_layers)
    divided = None if num_ranks == 1 else _divided(model, config, num_ranks)
    module = _module(model, directory, torch_dtype, torch_device, kept, divided)
    defaults = module.generation_config.to_diff_dict() if module.generation_config else {}
    eos_token_ids, tokenizer_files = load_tokenizer(model, directory, defaults)
    return LoadedModel(
        name=path.resolve().name if path.is_dir() else model,
        module=module,
        vocab_size=min(vocabulary_size(tokenizer_files), config.get_text_config().vocab_size),
        max_model_len=length,
        eos_token_ids=eos_token_ids,
        tokenizer_files=tokenizer_files,
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
    )


def _divided(model: str, config: PretrainedConfig, num_ranks: int) -> "DistributedConfig":
    from paceline.engine.ranks.sharding import distributed_config

    return distributed_config(model, config, num_ranks)


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise InvalidConfig(f"dtype {name!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def read_config(model: str, directory: Path) -> PretrainedConfig:
    """The `config.json` of the checkpoint of `model`; raises `InvalidConfig`."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(directory)
    except _LOADING_ERRORS as error:
        raise InvalidConfig(
            f"model {model!r}: its config.json cannot be used: {first_line(error)}"
        ) from error
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        raise InvalidConfig(
            f"model {model!r}: its config.json has quantization_config {quantization!r}; "
            "expected a checkpoint without quantization"
        )
    return config


def _max_model_len(model: str, config: PretrainedConfig, wanted: int | None) -> int:
    own: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if own is None and wanted is None:
        raise InvalidConfig(
            f"model {model!r} names no max_position_embeddings; set max_model_len to its limit"
        )
    if wanted is not None and not 1 <= wanted <= (own or wanted):
        raise InvalidConfig(
            f"max_model_len {wanted}: expected 1 to {own or 'any number'}, "
            f"the max_position_embeddings of model {model!r}"
        )
    return wanted or own or 0


def _module(
    model: str,
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    config: PretrainedConfig | None,  # of the layers to load; None for all
    divided: "DistributedConfig | None",  # how ranks share it; None for all of it here
) -> PreTrainedModel:
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                device_map=None if divided else device,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                distributed_config=divided,
            )
    except (SafetensorError, *_LOADING_ERRORS) as error:
        raise InvalidConfig(
            f"model {model!r}: its weights cannot be loaded: {first_line(error)}"
        ) from error
    # transformers leaves what does not fit as it was initialised, at random.
    missing, mismatched = sorted(loaded[1]["missing_keys"]), sorted(loaded[1]["mismatched_keys"])
    unexpected = sorted(loaded[1]["unexpected_keys"])
    if missing and "fc.weight" in unexpected:
        raise InvalidConfig(
            f"model {model!r} is the directory of a head for the drafter eagle, not of a model: it "
            "has a tensor 'fc.weight'; expected it in --head"
        )
    if missing:
        raise InvalidConfig(
            f"model {model!r}: its safetensors lack {len(missing)} weights, first {missing[0]!r}"
        )
    if mismatched:
        name, found, expected = mismatched[0]
        raise InvalidConfig(
            f"model {model!r}: weight {name!r} has shape {list(found)} in its safetensors; "
            f"its config.json makes that {list(expected)}"
        )
    if unexpected and config is None:
        logger.warning(
            "model %r: %d weights are not used, first %r", model, len(unexpected), unexpected[0]
        )
    module: PreTrainedModel = loaded[0].eval().requires_grad_(False)
    return module


def load_tokenizer(
    model: str, directory: Path, generation_defaults: dict[str, Any]
) -> tuple[frozenset[int], list[TokenizerFile]]:
    """The tokens that end a text, and the files with which a coordinator makes the tokenizer.

    `generation_defaults` stand in for a generation config that the directory lacks. Raises
    `InvalidConfig`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except _LOADING_ERRORS as error:
        raise InvalidConfig(
            f"model {model!r}: its tokenizer cannot be loaded, expected {TOKENIZER_FILE} and "
            f"{CONFIG_FILE}: {first_line(error)}"
        ) from error
    # Saved anew: old checkpoints spread over more files, and name a class only in config.json.
    with tempfile.TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)
        if not (Path(saved) / TOKENIZER_FILE).is_file():
            raise InvalidConfig(
                f"model {model!r}: its tokenizer {type(tokenizer).__name__} cannot be written as "
                f"{TOKENIZER_FILE}; expected one that the tokenizers library can run"
            )
        settings = _generation_settings(model, directory, generation_defaults)
        eos = _as_set(settings.get("eos_token_id")) | _as_set(tokenizer.eos_token_id)
        settings["eos_token_id"] = sorted(eos)
        (Path(saved) / GENERATION_FILE).write_text(json.dumps(settings))
        return eos, read_tokenizer_files(Path(saved))


def _generation_settings(model: str, directory: Path, defaults: dict[str, Any]) -> dict[str, Any]:
    # Read here, because transformers takes a file that it cannot read for one that is not there.
    try:
        settings: dict[str, Any] = json.loads((directory / GENERATION_FILE).read_text())
    except FileNotFoundError:
        return dict(defaults)
    except ValueError as error:
        raise InvalidConfig(
            f"model {model!r}: its {GENERATION_FILE} cannot be used: {first_line(error)}"
        ) from error
    return settings


def _as_set(token_id: int | list[int] | None) -> frozenset[int]:
    if token_id is None:
        return frozenset()
    return frozenset([token_id] if isinstance(token_id, int) else token_id)
