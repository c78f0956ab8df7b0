"""Writes checkpoint directories: each once, and the first layers of a model as a draft of it.

A model's first layers with its own last norm and head speak its vocabulary and cost a fraction: a
draft where no smaller model with the same tokens is to be had. `python -m
paceline.engine.checkpoints TARGET NUM_LAYERS DIRECTORY` makes one by hand.

Invariant: a directory is there whole or not at all, however many processes want it at once.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from paceline.errors import InvalidConfig


def made_once(directory: Path, write: Callable[[Path], None]) -> Path:
    """`directory`, filled by `write` unless it is there; others that want it wait meanwhile.

    Raises:
        InvalidConfig: it cannot be written.
    """
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):
            if not directory.is_dir():
                _write_whole(directory, write)
    except OSError as error:
        raise InvalidConfig(
            f"checkpoint directory {str(directory)!r} cannot be written: {error}"
        ) from error
    return directory


def truncated_checkpoint(target: Path, num_layers: int, directory: Path) -> Path:
    """`directory` with the first `num_layers` layers of the checkpoint in `target`.

    Raises:
        InvalidConfig: `target` has fewer layers, or `directory` cannot be written.
    """
    config = _first_layers(AutoConfig.from_pretrained(target), num_layers)

    def write(unfinished: Path) -> None:
        with _quiet():
            module = AutoModelForCausalLM.from_pretrained(target, config=config, dtype="auto")
        module.save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(target).save_pretrained(unfinished)

    return made_once(directory, write)


def _write_whole(directory: Path, write: Callable[[Path], None]) -> None:
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    # The lock is ours: what an interrupted process left behind is nobody's.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    write(unfinished)
    # Weights are written for their owner alone; an image is built by one user and run by another.
    for path in unfinished.glob("*.safetensors"):
        path.chmod(0o644)
    unfinished.rename(directory)


def _first_layers(config: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    settings = config.to_dict()
    available = settings["num_hidden_layers"]
    if not 1 <= num_layers <= available:
        raise InvalidConfig(f"num_layers {num_layers}: expected 1 to {available}, the target's")
    # Such as `layer_types`: what is listed per layer must be as long as the layers are many.
    per_layer = {
        name: value[:num_layers]
        for name, value in settings.items()
        if isinstance(value, list) and len(value) == available
    }
    kept: PretrainedConfig = type(config).from_dict(
        settings | per_layer | {"num_hidden_layers": num_layers}
    )
    return kept


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the report on the layers that are left out on purpose."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def main() -> None:
    """Make a draft checkpoint from the command line."""
    parser = argparse.ArgumentParser(description="Save the first layers of a model as a draft.")
    parser.add_argument("target", type=Path)
    parser.add_argument("num_layers", type=int)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    truncated_checkpoint(options.target, options.num_layers, options.directory)


if __name__ == "__main__":
    main()
