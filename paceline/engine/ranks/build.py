"""One rank of a target, from its settings to something that runs passes.

The ranks meet before they load, where it shows that they were told the same, when all have loaded,
which may take minutes more for one than for another, and when all could run a pass.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import torch

from paceline import __version__
from paceline.config import set_default_environment
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.device import Device, dtype_on
from paceline.engine.head_features import HeadFeatures, features_of_head
from paceline.engine.loading import LoadedModel, load_model
from paceline.engine.pass_runner import PassRunner
from paceline.engine.ranks.follower import Follower
from paceline.engine.ranks.group import CPU_BACKEND, CUDA_BACKEND, RankFailed, RankGroup
from paceline.engine.ranks.place import GroupBroken, RankPlace
from paceline.engine.ranks.sharding import RankShare
from paceline.engine.worker_model import (
    ModelSettings,
    WorkerModel,
    cache_directory,
    made_ready,
    prepare_torch,
    room_for_kv,
)
from paceline.errors import InvalidConfig


class TargetModelSettings(ModelSettings, Protocol):
    """The settings of a target that say which model it runs and how."""

    @property
    def max_model_len(self) -> int | None: ...
    @property
    def feature_layers(self) -> Sequence[int]: ...
    @property
    def head(self) -> str: ...
    @property
    def allow_pickle(self) -> bool: ...
    @property
    def rank_timeout_seconds(self) -> float: ...


def build_rank(settings: TargetModelSettings, place: RankPlace) -> WorkerModel | Follower:
    """Load this rank's share of the model: rank 0 is a model to others, the rest follow it.

    Raises:
        InvalidConfig: this rank cannot start, or another one cannot, or was told something else.
        GroupBroken: another rank has ended, or did not come.
    """
    # transformers, too, looks for its card there.
    set_default_environment({"LOCAL_RANK": str(place.local_rank)})
    device = prepare_torch(settings, place.local_rank)
    is_on_cpu = device.torch_device.type == "cpu"
    if is_on_cpu and torch.cuda.is_available():
        raise InvalidConfig(
            f"device is {settings.device!r} and tensor_parallel_size {place.size}, but "
            "transformers loads ranks onto the CUDA cards that it sees; hide them with "
            "CUDA_VISIBLE_DEVICES="
        )
    backend = CPU_BACKEND if is_on_cpu else CUDA_BACKEND
    return load_rank(settings, device, RankGroup(place, backend, settings.rank_timeout_seconds))


def load_rank(
    settings: TargetModelSettings, device: Device, group: RankGroup
) -> WorkerModel | Follower:
    """As `build_rank`, with the other ranks of a group that has met."""
    try:
        dtype = dtype_on(device, settings.dtype)
        group.meet(_facts(settings, dtype))
        loaded = load_model(
            settings.model or DEFAULT_MODEL,
            dtype=dtype,
            device=str(device.torch_device),
            max_model_len=settings.max_model_len,
            cache_dir=cache_directory(settings),
            num_ranks=group.size,
        )
        fed = _fed(settings, loaded) if group.rank == 0 else None
        group.meet()
        share = RankShare(loaded.module, group)
        if group.rank > 0:
            return _follower(settings, loaded, device, share)
        if fed is None:
            return made_ready(settings, loaded, device, settings.feature_layers, share=share)
        return made_ready(settings, loaded, device, fed.layers, fed.projection, share)
    except RankFailed:
        raise
    except InvalidConfig as error:
        # So that the others say why; whoever does not hear it sees this process end. What they may
        # have to say against it comes second.
        with suppress(GroupBroken, RankFailed):
            group.meet(error=error.message)
        raise


def _fed(settings: TargetModelSettings, loaded: LoadedModel) -> HeadFeatures | None:
    """What the head of drafts is fed with, if there is one."""
    if not settings.head:
        return None
    config = loaded.module.config
    return features_of_head(
        settings.head, config.num_hidden_layers, config.hidden_size, settings.allow_pickle
    )


def _follower(
    settings: TargetModelSettings, loaded: LoadedModel, device: Device, share: RankShare
) -> Follower:
    # Features are the same at all ranks; rank 0 keeps them.
    pool_tokens = room_for_kv(settings, loaded, device, share=share)
    runner = PassRunner(
        loaded.module, loaded.max_model_len, device=device, share=share, pool_tokens=pool_tokens
    )
    return Follower(runner, share.group)


def _facts(settings: TargetModelSettings, dtype: str) -> list[tuple[str, str]]:
    """What all ranks have to be told alike, and what they compute with."""
    return [
        ("model", settings.model),
        ("dtype", dtype),
        ("max_model_len", str(settings.max_model_len)),
        ("kv_cache_tokens", str(settings.kv_cache_tokens)),
        ("Paceline's version", __version__),
        ("PyTorch's version", torch.__version__),
    ]
