"""The model of a worker, from its name to something that runs passes.

torch is imported only for models that need it, so that a worker of the table model starts at once.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.config import set_default_environment
from paceline.engine.model import LanguageModel
from paceline.engine.table_model import TableLaw, TableModel
from paceline.engine.table_tokenizer import table_tokenizer_files
from paceline.engine.tokenizer_files import TokenizerFile, tokenizer_digest
from paceline.errors import InvalidConfig
from paceline.rounds import PassCost

if TYPE_CHECKING:
    from paceline.engine.device import Device
    from paceline.engine.feature_projection import FeatureProjection
    from paceline.engine.loading import LoadedModel
    from paceline.engine.ranks.group import RankGroup
    from paceline.engine.ranks.sharding import RankShare

logger = logging.getLogger(__name__)

MAX_KV_SEQUENCES = 64
"""More KV room than for so many sequences of full length is never used."""


class ModelSettings(Protocol):
    """The settings of a worker that say which model it runs and how."""

    @property
    def model(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def kv_cache_tokens(self) -> int | None: ...
    @property
    def kv_memory_fraction(self) -> float | None: ...
    @property
    def num_threads(self) -> int | None: ...
    @property
    def cache_dir(self) -> str: ...


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A model that is ready to run, and what its worker says about it."""

    model: LanguageModel
    name: str
    numerics: str
    tokenizer_files: Sequence[TokenizerFile]
    pass_costs: tuple[PassCost, ...]
    feature_layers: tuple[int, ...] = ()
    """Layers whose hidden states are kept."""
    feature_projection: str = ""
    """Digest of what they go through on their way out."""
    num_parameters: int = 0
    """Tied ones counted once; 0 for the table model, which has none."""
    varies_with_width: bool = False
    """Whether a row's bits depend on the other rows of a pass."""
    group: "RankGroup | None" = None
    """Of the ranks that run it, of which this is the first; None: there are no others."""

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokens."""
        return tokenizer_digest(self.tokenizer_files)


def build_worker_model(
    settings: ModelSettings,
    max_model_len: int | None = None,
    feature_layers: Sequence[int] = (),
    head: str = "",
    allow_pickle: bool = False,
) -> WorkerModel:
    """Load the model that the settings name; raises `InvalidConfig`.

    Keeps the hidden states of `feature_layers`, or of those that the head in the directory `head`
    is fed with, which may then be a pickle.
    """
    if not settings.model.startswith("table:"):
        return _transformer_model(settings, max_model_len, feature_layers, head, allow_pickle)
    if head:
        raise InvalidConfig(
            f"head is {head!r}, but the model {settings.model!r} has no hidden states to feed it "
            "with; expected none"
        )
    return _table_model(settings, max_model_len, feature_layers)


def prepare_torch(settings: ModelSettings, local_rank: int = 0) -> "Device":
    """Set torch up as the settings say, and find what they compute on. Before torch is imported.

    Raises `InvalidConfig`.
    """
    # OpenMP reads it when torch is imported. By default its threads spin for milliseconds after
    # each operation, on cores that other processes need; not at all makes each pass slower.
    set_default_environment({"GOMP_SPINCOUNT": "10000"})
    import torch

    from paceline.engine.device import CUBLAS_ENVIRONMENT, open_device

    set_default_environment(CUBLAS_ENVIRONMENT)
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    return open_device(settings.device, local_rank)


def memory_share(settings: ModelSettings, device: "Device") -> int:
    """Bytes of the free memory that KV may take, as the settings allow."""
    fraction = settings.kv_memory_fraction
    share = device.kv_memory_fraction if fraction is None else fraction
    return int(share * device.free_memory())


def room_for_kv(
    settings: ModelSettings,
    loaded: "LoadedModel",
    device: "Device",
    feature_size: int = 0,
    share: "RankShare | None" = None,
) -> int:
    """Tokens whose KV is kept: as the settings say, or as many as fit; of ranks all have to ask."""
    if settings.kv_cache_tokens is not None:
        return settings.kv_cache_tokens
    affordable = _affordable_tokens(settings, loaded, device, feature_size, share)
    return min(affordable, MAX_KV_SEQUENCES * loaded.max_model_len)


def _affordable_tokens(
    settings: ModelSettings,
    loaded: "LoadedModel",
    device: "Device",
    feature_size: int,
    share: "RankShare | None",
) -> int:
    from paceline.engine.attention_shape import AttentionShape
    from paceline.engine.kv_storage import kv_bytes_per_token
    from paceline.engine.paged.storage import CELLS_PER_SCRATCH_BLOCK

    config, dtype = loaded.module.config, loaded.module.dtype
    shape = AttentionShape.of(config) if share is None else share.shape(config)
    bytes_per_token = kv_bytes_per_token(shape, dtype, feature_size)
    if device.pages_kv:
        bytes_per_token += -(-bytes_per_token // CELLS_PER_SCRATCH_BLOCK)
    if share is None:
        return memory_share(settings, device) // bytes_per_token
    own = memory_share(settings, device) // share.group.num_sharing_memory // bytes_per_token
    return share.group.least(own)


def cache_directory(settings: ModelSettings) -> Path | None:
    """Where models that are made or fetched are kept; None: in the usual places."""
    return Path(settings.cache_dir).expanduser() if settings.cache_dir else None


def _table_model(
    settings: ModelSettings, max_model_len: int | None, feature_layers: Sequence[int]
) -> WorkerModel:
    law = TableLaw.parse(settings.model)
    room = {} if max_model_len is None else {"max_model_len": max_model_len}
    if settings.kv_cache_tokens is not None:
        room["num_cells"] = -(-settings.kv_cache_tokens // 16)
    model = TableModel(law, **room)
    return WorkerModel(
        model,
        settings.model,
        settings.model,
        table_tokenizer_files(),
        (),
        tuple(feature_layers),
    )


def _transformer_model(
    settings: ModelSettings,
    max_model_len: int | None,
    feature_layers: Sequence[int],
    head: str,
    allow_pickle: bool,
) -> WorkerModel:
    device = prepare_torch(settings)
    from paceline.engine.default_model import DEFAULT_MODEL
    from paceline.engine.device import dtype_on
    from paceline.engine.head_features import features_of_head
    from paceline.engine.loading import load_model

    loaded = load_model(
        settings.model or DEFAULT_MODEL,
        dtype=dtype_on(device, settings.dtype),
        device=str(device.torch_device),
        max_model_len=max_model_len,
        cache_dir=cache_directory(settings),
    )
    if not head:
        return made_ready(settings, loaded, device, feature_layers)
    config = loaded.module.config
    fed = features_of_head(head, config.num_hidden_layers, config.hidden_size, allow_pickle)
    return made_ready(settings, loaded, device, fed.layers, fed.projection)


def made_ready(
    settings: ModelSettings,
    loaded: "LoadedModel",
    device: "Device",
    feature_layers: Sequence[int] = (),
    projection: "FeatureProjection | None" = None,
    share: "RankShare | None" = None,
) -> WorkerModel:
    """Make a loaded model run, with the room that the settings name; `InvalidConfig`.

    With a `share` as rank 0 of its group, of which the others have come as far.
    """
    import torch

    from paceline.engine.costs import measure_pass_costs
    from paceline.engine.transformer import TransformerModel

    feature_size = len(feature_layers) * loaded.module.config.hidden_size
    kv_cache_tokens = room_for_kv(settings, loaded, device, feature_size, share)
    try:
        model = TransformerModel(
            loaded.module,
            loaded.vocab_size,
            loaded.max_model_len,
            kv_cache_tokens,
            feature_layers=feature_layers,
            projection=projection,
            device=device,
            share=share,
        )
        pass_costs = measure_pass_costs(model)
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(
            f"kv_cache_tokens is {kv_cache_tokens}, for which {device.facts[0]} has no room beside "
            f"the model {loaded.name!r}; expected less, or a smaller kv_memory_fraction: {error}"
        ) from error
    if model.varies_with_width:
        logger.warning(
            "the bits of a row of %s depend on the other rows of a pass on %s: answers follow the "
            "law of the model, but which of them a seed gives may depend on drafts and on other "
            "requests, and each answer says so (varies_with_width)",
            *(loaded.name, device.facts[0]),
        )
    return WorkerModel(
        model,
        loaded.name,
        model.numerics,
        loaded.tokenizer_files,
        pass_costs,
        tuple(feature_layers),
        "" if projection is None else projection.digest,
        loaded.num_parameters,
        model.varies_with_width,
        None if share is None else share.group,
    )
