"""The drafters by name: what `--drafter` may be, and what a worker says about each.

torch is imported only for those that need it, so that a worker of `suffix` starts at once.
"""

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from draft_service.config import DraftSettings
from draft_service.draft_tree import TREES
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.drafters.translated_model import translated_drafter
from draft_service.proposer import Drafter
from draft_service.translation.target_tokenizer import read_target_tokenizer
from paceline import __version__
from paceline.engine.grammar import Grammars
from paceline.engine.tokenizer_files import tokenizer_digest, vocabulary_size
from paceline.engine.worker_model import (
    WorkerModel,
    build_worker_model,
    cache_directory,
    prepare_torch,
)
from paceline.heads.kind import head_kind
from paceline.rounds import WorkerInfo

if TYPE_CHECKING:
    from paceline.engine.worker_head import WorkerHead


def make_drafter(settings: DraftSettings) -> tuple[Drafter, WorkerInfo]:
    """The drafter that the settings name, and its worker's description.

    Raises:
        InvalidConfig: its model or head cannot be used.
    """
    info = WorkerInfo(
        instance_id=secrets.token_hex(8),
        version=__version__,
        max_speculative_tokens=settings.max_speculative_tokens,
        drafter=settings.drafter,
        started_at_ms=time.time_ns() // 1_000_000,
    )
    match settings.drafter:
        case "suffix":
            return SuffixDrafter(), info
        case "eagle":
            return _eagle(settings, info)
        case "medusa":
            return _medusa(settings, info)
        case "hybrid" | "auto":  # which the settings have decided
            return _hybrid(settings, info)
        case "early-exit":
            return _early_exit(settings, info)
        case "draft-model" | "self":
            return _model(build_worker_model(settings), settings, info)


def _early_exit(settings: DraftSettings, info: WorkerInfo) -> tuple[Drafter, WorkerInfo]:
    device = prepare_torch(settings)
    from paceline.engine.worker_exit import build_worker_exit

    return _model(build_worker_exit(settings, device), settings, info)


def _model(
    loaded: WorkerModel, settings: DraftSettings, info: WorkerInfo
) -> tuple[Drafter, WorkerInfo]:
    files, vocab_size = loaded.tokenizer_files, loaded.model.vocab_size
    if settings.target_tokenizer:
        files = read_target_tokenizer(settings.target_tokenizer, cache_directory(settings))
    drafter: Drafter
    if tokenizer_digest(files) == loaded.tokenizer_digest:
        drafter = ModelDrafter(loaded.model, Grammars.of_tokenizer(files, vocab_size))
    else:
        vocab_size = vocabulary_size(files)
        drafter = translated_drafter(loaded.model, loaded.name, loaded.tokenizer_files, files)
    return drafter, replace(
        info,
        model=loaded.name,
        numerics=loaded.numerics,
        tokenizer_digest=tokenizer_digest(files),
        vocab_size=vocab_size,
        max_model_len=loaded.model.max_model_len,
        num_parameters=loaded.num_parameters,
        pass_costs=loaded.pass_costs,
        varies_with_width=loaded.varies_with_width,
    )


def _eagle(settings: DraftSettings, info: WorkerInfo) -> tuple[Drafter, WorkerInfo]:
    device = prepare_torch(settings)
    from draft_service.drafters.eagle import EagleDrafter
    from paceline.engine.worker_head import build_worker_head

    loaded = build_worker_head(settings, device)
    drafter = EagleDrafter(
        loaded.head, _grammars(loaded), loaded.kv_cache_tokens, TREES.get(settings.draft_tree)
    )
    return drafter, _fed_info(info, loaded)


def _medusa(settings: DraftSettings, info: WorkerInfo) -> tuple[Drafter, WorkerInfo]:
    device = prepare_torch(settings)
    from draft_service.drafters.medusa import MedusaDrafter
    from paceline.engine.worker_head import build_medusa_head

    loaded = build_medusa_head(settings, device)
    new_tree = TREES.get(settings.draft_tree)
    if new_tree is None:
        most = min(settings.max_speculative_tokens, loaded.head.num_heads)
        info = replace(info, max_speculative_tokens=most)
    return MedusaDrafter(loaded.head, _grammars(loaded), new_tree), _fed_info(info, loaded)


def _hybrid(settings: DraftSettings, info: WorkerInfo) -> tuple[Drafter, WorkerInfo]:
    make = _medusa if head_kind(settings.head) == "medusa" else _eagle
    model, info = make(settings, info)
    # Of a match there may be more drafts than a head has to say.
    info = replace(info, max_speculative_tokens=settings.max_speculative_tokens)
    return HybridDrafter(model, SuffixDrafter(model.table)), info


def _grammars(loaded: "WorkerHead[Any]") -> Grammars:
    return Grammars.of_tokenizer(loaded.tokenizer_files, loaded.head.vocab_size)


def _fed_info(info: WorkerInfo, loaded: "WorkerHead[Any]") -> WorkerInfo:
    """What a worker says that is fed with the target's hidden states."""
    return replace(
        info,
        model=loaded.name,
        tokenizer_digest=loaded.tokenizer_digest,
        vocab_size=loaded.head.vocab_size,
        feature_layers=loaded.feature_layers,
        feature_size=loaded.head.feature_size,
        feature_projection=loaded.feature_projection,
        num_parameters=loaded.head.num_parameters,
    )
