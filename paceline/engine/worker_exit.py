"""The first layers of a draft worker's target as its draft (self-speculation, arXiv 2404.16710).

Reads of the checkpoint only the tensors that run. What leads from the last of these layers to
logits is the target's own norm and output matrix, as in LayerSkip checkpoints, or a trained exit
(`exit_checkpoint`). The draft shares nothing with the target's process, also no KV.
"""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paceline.engine.device import Device, dtype_on
from paceline.engine.draft_vocabulary import DraftVocabulary, DraftVocabularyModel
from paceline.engine.exit_checkpoint import check_exit_fits, put_exit
from paceline.engine.head_tensors import Target
from paceline.engine.loading import load_model
from paceline.engine.worker_head import HeadSettings, find_target
from paceline.engine.worker_model import WorkerModel, cache_directory, made_ready
from paceline.errors import InvalidConfig
from paceline.heads.exit_config import read_exit_config
from paceline.heads.kind import check_head_kind

DEFAULT_SHARE = 4
"""A quarter of the layers run where nothing is said, as in LayerSkip's own measurements."""


class ExitSettings(HeadSettings, Protocol):
    """The settings of a worker that say where it leaves which `model`, and how."""

    @property
    def exit_layer(self) -> int | None: ...


def build_worker_exit(settings: ExitSettings, device: Device) -> WorkerModel:
    """Load the layers that the settings name, for the device of `prepare_torch`.

    Raises:
        InvalidConfig: the model or the exit cannot be used, or not together.
    """
    target = find_target(settings)
    return (_trained if settings.head else _plain)(settings, device, target)


def _plain(settings: ExitSettings, device: Device, target: Target) -> WorkerModel:
    exit_layer = settings.exit_layer
    if exit_layer is None:
        exit_layer = max(1, target.num_layers // DEFAULT_SHARE)
    if not 1 <= exit_layer < target.num_layers:
        raise InvalidConfig(
            f"exit_layer is {exit_layer}; expected 1 to {target.num_layers - 1}, less than the "
            f"layers of the model {target.name!r}"
        )
    loaded = load_model(
        target.name,
        dtype=dtype_on(device, settings.dtype),
        device=str(device.torch_device),
        cache_dir=cache_directory(settings),
        num_layers=exit_layer,
    )
    ready = made_ready(settings, loaded, device)
    return replace(ready, name=f"{ready.name}, first {exit_layer} layers")


def _trained(settings: ExitSettings, device: Device, target: Target) -> WorkerModel:
    check_head_kind(settings.head, "early-exit")
    config = read_exit_config(settings.head)
    check_exit_fits(settings.head, config, target)
    loaded = load_model(
        target.name,
        dtype=dtype_on(device, settings.dtype),
        device=str(device.torch_device),
        cache_dir=cache_directory(settings),
        num_layers=config.exit_layer + 1,
    )
    target_ids = put_exit(settings.head, config, target, loaded.module, settings.allow_pickle)
    vocabulary = DraftVocabulary(target_ids, loaded.vocab_size)
    ready = made_ready(settings, replace(loaded, vocab_size=len(target_ids)), device)
    return replace(
        ready,
        model=DraftVocabularyModel(ready.model, vocabulary),
        name=Path(settings.head).expanduser().resolve().name,
    )
