"""The stages one after the other, each going on from what is on disk."""

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draft_service.training.capture import capture_features
from draft_service.training.checkpoint import bind_directory
from draft_service.training.eagle_training import train_eagle
from draft_service.training.features import FeatureFiles, open_features
from draft_service.training.progress import Progress
from draft_service.training.settings import TrainingSettings
from draft_service.training.text import TrainingText, read_text
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import LoadedModel, load_model

_WITHOUT_INFLUENCE = frozenset(
    {"log_level", "cache_dir", "num_threads", "device", "data", "features", "output", "model"}
    | {"evaluate_every"}
)
"""Settings that may change when a training goes on; of some of them the contents may not."""


def run(settings: TrainingSettings) -> Path:
    """Everything; returns the directory of the trained drafter. Raises `InvalidConfig`."""
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    output = Path(settings.output).expanduser()
    progress = Progress(output)
    loaded = load_model(
        settings.model or DEFAULT_MODEL,
        dtype="float32",
        device=settings.device,
        cache_dir=Path(settings.cache_dir).expanduser() if settings.cache_dir else None,
    )
    config = loaded.module.config.get_text_config()
    text = read_text(Path(settings.data).expanduser(), config.vocab_size)
    bind_directory(output, _facts(settings, loaded, text))
    num_layers = config.num_hidden_layers
    layer_ids = (2, num_layers // 2, num_layers - 3)
    features = open_features(
        Path(settings.features).expanduser() if settings.features else output / "features",
        text,
        (len(layer_ids) + 1) * config.hidden_size,
        settings.seed,
    )
    _capture(loaded, layer_ids, features, progress)
    return train_eagle(settings, loaded, text, features, layer_ids, progress)


def _capture(
    loaded: LoadedModel, layer_ids: tuple[int, ...], features: FeatureFiles, progress: Progress
) -> None:
    first, started = features.num_captured, time.monotonic()

    def say(num_captured: int) -> None:
        num_tokens = features.starts[num_captured] - features.starts[first]
        progress.say(
            f"features of {num_captured}/{features.num_sequences} sequences  "
            f"{num_tokens / (time.monotonic() - started):.0f} tokens/s"
        )

    capture_features(loaded.module, layer_ids, features, say)


def _facts(
    settings: TrainingSettings, loaded: LoadedModel, text: TrainingText
) -> dict[str, object]:
    """What decides the trained weights."""
    chosen = settings.model_dump(mode="json", exclude=set(_WITHOUT_INFLUENCE))
    weights = loaded.module.get_output_embeddings().weight
    return chosen | {
        "model": loaded.name,
        "model's output matrix": _digest(weights.detach().float().cpu().numpy()),
        "data": _digest(text.ids, text.starts, text.answer_starts),
    }


def _digest(*arrays: NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
