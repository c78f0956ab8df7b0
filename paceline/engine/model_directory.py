"""Finds the checkpoint directory that `--model` names.

A name is the bundled model's, a directory in the layout of Hugging Face, or an id there, taken from
the local cache if it is complete there and fetched otherwise. Knows file names, not contents.

Invariant: what is found has a config and all its weights, or is refused by what is missing.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import shorten

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from paceline.engine.default_model import DEFAULT_MODEL, default_model_directory
from paceline.errors import InvalidConfig
from paceline.heads.kind import refuse_head

_WEIGHTS_FILE = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = ["*.json", "*.jinja", "*.model"]
_HUB_FILES = ["*.json", "*.jinja", "*.model", "model*.safetensors"]


def resolve_model(model: str, cache_dir: Path | None = None) -> Path:
    """The checkpoint directory of `model`.

    What has to be made or fetched goes below `cache_dir`; None: `~/.cache/paceline` for the bundled
    model, Hugging Face's own cache for theirs.

    Raises:
        InvalidConfig: there is no such directory, and no such model at hand or to be fetched.
    """
    if model == DEFAULT_MODEL:
        return default_model_directory(cache_dir or _home_cache())
    path = Path(model).expanduser()
    if path.is_dir():
        refuse_head(f"model {model!r}", model)
        _refuse_incomplete(model, path)
        return path
    if _looks_like_path(model):
        raise InvalidConfig(f"model {model!r} is no directory")
    if model.startswith("table:"):
        raise InvalidConfig(
            f"model {model!r} is the tests' table model, which has no layers and no weights; "
            "expected a directory or a Hugging Face id"
        )
    directory = _hub_directory(model, cache_dir)
    _refuse_incomplete(model, directory)
    return directory


def resolve_tokenizer(model: str, cache_dir: Path | None = None) -> Path:
    """As `resolve_model`, for its tokenizer alone: weights are neither missed nor fetched.

    Raises:
        InvalidConfig: there is no such directory, and no such model at hand or to be fetched.
    """
    path = Path(model).expanduser()
    if model == DEFAULT_MODEL or (not path.is_dir() and _looks_like_path(model)):
        return resolve_model(model, cache_dir)
    if path.is_dir():
        return path
    fetch = partial(snapshot_download, model, cache_dir=cache_dir, allow_patterns=_TOKENIZER_FILES)
    try:
        local = Path(fetch(local_files_only=True))
        if (local / "tokenizer.json").is_file():
            return local
    except (OSError, ValueError):
        pass
    return _fetched(model, fetch)


def first_line(error: Exception) -> str:
    """The beginning of what a library says, in one line; what follows is often advice."""
    return f"{type(error).__name__}: {shorten(str(error), 300, placeholder=' …')}"


def _home_cache() -> Path:
    try:
        return Path.home() / ".cache" / "paceline"
    except RuntimeError:
        raise InvalidConfig("this user has no home directory: set cache_dir") from None


def _looks_like_path(model: str) -> bool:
    is_rooted = Path(model).expanduser().is_absolute() or model.startswith((".", "~"))
    return is_rooted or model.count("/") > 1


def _hub_directory(model: str, cache_dir: Path | None) -> Path:
    fetch = partial(snapshot_download, model, cache_dir=cache_dir, allow_patterns=_HUB_FILES)
    try:
        local = Path(fetch(local_files_only=True))
        # A snapshot without a listing may be cut short; then its weights are what is missing.
        if _missing_file(local) is None:
            return local
    except (OSError, ValueError, KeyError):
        pass
    return _fetched(model, fetch)


def _fetched(model: str, fetch: Callable[[], str]) -> Path:
    try:
        return Path(fetch())
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise InvalidConfig(
            f"model {model!r} is not to be had: it is no directory, the local Hugging Face cache "
            f"lacks it or a part of it, and fetching it failed ({first_line(error)}); "
            f"expected {DEFAULT_MODEL}, table:<seed>, a directory or a Hugging Face id"
        ) from error


def _missing_file(directory: Path) -> str | None:
    """The first file that a checkpoint needs and that is not there."""
    if not (directory / "config.json").is_file():
        return "config.json"
    names = [_WEIGHTS_FILE]
    if (directory / _WEIGHTS_INDEX).is_file():
        index = json.loads((directory / _WEIGHTS_INDEX).read_text())
        names = sorted(set(index["weight_map"].values()))
    return next((name for name in names if not (directory / name).is_file()), None)


def _refuse_incomplete(model: str, directory: Path) -> None:
    try:
        missing = _missing_file(directory)
    except (ValueError, KeyError) as error:
        raise InvalidConfig(
            f"model {model!r}: its {_WEIGHTS_INDEX} cannot be used: {first_line(error)}"
        ) from error
    if missing is not None:
        raise InvalidConfig(f"model {model!r}: the directory {str(directory)!r} has no {missing}")
