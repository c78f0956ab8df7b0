"""The tokenizers that tests use: the default model's and the table model's."""

from functools import cache
from pathlib import Path

from coordinator.tokenizer import Tokenizer
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.model_directory import resolve_model
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import read_tokenizer_files


def smollm2_directory() -> Path:
    """The checkpoint of the default model."""
    return resolve_model(DEFAULT_MODEL)


@cache
def smollm2_tokenizer() -> Tokenizer:
    """49152 byte-level tokens, of which 313 are no whole characters."""
    files = read_tokenizer_files(smollm2_directory())
    return Tokenizer((file.name, file.content) for file in files)


@cache
def table_tokenizer() -> Tokenizer:
    """A token for each byte, and five special ones."""
    return Tokenizer((file.name, file.content) for file in table_tokenizer_files())
