"""The target's tokenizer, for a draft worker that has another one and not the target's weights."""

from collections.abc import Sequence
from pathlib import Path

from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import TokenizerFile


def read_target_tokenizer(model: str, cache_dir: Path | None) -> Sequence[TokenizerFile]:
    """Of the target that runs `model`, or from a directory with a tokenizer alone.

    Raises:
        InvalidConfig: there is none.
    """
    if model.startswith("table:"):
        return table_tokenizer_files()
    # Imports torch, which a worker with a draft model has loaded already.
    from paceline.engine.loading import load_tokenizer
    from paceline.engine.model_directory import resolve_tokenizer

    return load_tokenizer(model, resolve_tokenizer(model, cache_dir), {})[1]
