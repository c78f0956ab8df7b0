"""Saves the first layers of a model as a draft of it.

A model's first layers with its own last norm and head speak its vocabulary and cost a fraction: a
draft where no smaller model with the same tokens is to be had. `python -m
paceline.engine.checkpoints TARGET NUM_LAYERS DIRECTORY` makes one by hand.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.utils import logging

from paceline.engine.cache_directory import made_once
from paceline.errors import InvalidConfig


def truncated_checkpoint(target: Path, num_layers: int, directory: Path) -> Path:
    """`directory` with the first `num_layers` layers of the checkpoint in `target`.

    Raises:
        InvalidConfig: `target` has fewer layers, or `directory` cannot be written.
    """
    config = first_layers(AutoConfig.from_pretrained(target), num_layers)

    def write(unfinished: Path) -> None:
        with quiet_transformers():
            module = AutoModelForCausalLM.from_pretrained(target, config=config, dtype="auto")
            module.save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(target).save_pretrained(unfinished)

    return made_once(directory, write)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars and load reports: callers check the report and log what matters."""
    verbosity, had_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()


def first_layers(config: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    """The config of a model's first layers; raises `InvalidConfig`."""
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
