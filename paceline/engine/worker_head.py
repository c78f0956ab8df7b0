"""The head of a draft worker, from its directory to something that runs.

Needs the checkpoint directory of the target beside it, of which it reads the config, the tokenizer
and what the head has no tensors of its own for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.device import DTYPES, Device, dtype_on
from paceline.engine.eagle_checkpoint import check_fits, read_head_weights
from paceline.engine.eagle_head import EagleHead
from paceline.engine.feature_projection import FeatureProjection
from paceline.engine.head_tensors import Target
from paceline.engine.linear import can_pack
from paceline.engine.loading import load_tokenizer, read_config
from paceline.engine.medusa_checkpoint import read_medusa_weights
from paceline.engine.medusa_head import MedusaHead
from paceline.engine.model_directory import resolve_model
from paceline.engine.tokenizer_files import TokenizerFile, tokenizer_digest, vocabulary_size
from paceline.engine.worker_model import ModelSettings, cache_directory, memory_share
from paceline.heads.eagle_config import read_head_config
from paceline.heads.kind import check_head_kind
from paceline.heads.medusa_config import read_medusa_config

HeadT = TypeVar("HeadT", EagleHead, MedusaHead)


class HeadSettings(ModelSettings, Protocol):
    """The settings of a worker that say which head it runs, for which `model`, and how."""

    @property
    def head(self) -> str: ...
    @property
    def allow_pickle(self) -> bool: ...
    @property
    def feature_projection(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkerHead(Generic[HeadT]):
    """A head that is ready to run, and what its worker says about it."""

    head: HeadT
    name: str
    feature_layers: tuple[int, ...]
    feature_projection: str
    """Digest of what the features must have gone through; empty for nothing."""
    tokenizer_files: Sequence[TokenizerFile]
    kv_cache_tokens: int = 0
    """Tokens that there is room for, all sequences together; 0 for a head that keeps none."""

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokens, which are the target's."""
        return tokenizer_digest(self.tokenizer_files)


def build_worker_head(settings: HeadSettings, device: Device) -> WorkerHead[EagleHead]:
    """Load the EAGLE head that the settings name, for the device of `prepare_torch`.

    Raises:
        InvalidConfig: it cannot be used, or not with the target.
    """
    check_head_kind(settings.head, "eagle")
    config, target = read_head_config(settings.head), find_target(settings)
    check_fits(settings.head, config, target)
    weights = read_head_weights(settings.head, config, target, settings.allow_pickle)
    tokenizer_files, vocab_size = _tokens(target)
    is_projected = settings.feature_projection and config.is_eagle3
    head_dtype = _head_dtype(settings, device)
    head = EagleHead(config, weights, vocab_size, head_dtype, is_projected, device)
    projection = FeatureProjection.of(weights.tensors["fc.weight"]).digest
    affordable = memory_share(settings, device) // head.bytes_per_token
    return WorkerHead(
        head=head,
        name=_name(settings),
        feature_layers=config.feature_layers(target.num_layers),
        feature_projection=projection if is_projected else "",
        tokenizer_files=tokenizer_files,
        kv_cache_tokens=settings.kv_cache_tokens or affordable,
    )


def build_medusa_head(settings: HeadSettings, device: Device) -> WorkerHead[MedusaHead]:
    """Load the Medusa heads that the settings name, as `build_worker_head` does."""
    check_head_kind(settings.head, "medusa")
    config, target = read_medusa_config(settings.head), find_target(settings)
    weights = read_medusa_weights(settings.head, config, target, settings.allow_pickle)
    tokenizer_files, vocab_size = _tokens(target)
    return WorkerHead(
        head=MedusaHead(weights, vocab_size, _head_dtype(settings, device), device),
        name=_name(settings),
        feature_layers=config.feature_layers(target.num_layers),
        feature_projection="",
        tokenizer_files=tokenizer_files,
    )


def find_target(settings: ModelSettings) -> Target:
    """The model that the head was made for; raises `InvalidConfig`."""
    name = settings.model or DEFAULT_MODEL
    directory = resolve_model(name, cache_directory(settings))
    config = read_config(name, directory)
    text_config = config.get_text_config()
    return Target(
        name=name,
        directory=directory,
        hidden_size=text_config.hidden_size,
        vocab_size=text_config.vocab_size,
        num_layers=text_config.num_hidden_layers,
        has_tied_embeddings=bool(config.tie_word_embeddings),
    )


def _head_dtype(settings: ModelSettings, device: Device) -> torch.dtype:
    """A quarter of the bytes by default, where that also saves time: a draft need not be exact."""
    if settings.dtype == "auto" and device.packs_weights and can_pack(torch.bfloat16):
        return torch.int8
    return DTYPES[dtype_on(device, settings.dtype)]


def _tokens(target: Target) -> tuple[Sequence[TokenizerFile], int]:
    """The target's tokenizer, and how many tokens there are."""
    _, files = load_tokenizer(target.name, target.directory, {})
    return files, min(vocabulary_size(files), target.vocab_size)


def _name(settings: HeadSettings) -> str:
    return Path(settings.head).expanduser().resolve().name
