"""The stages one after the other, each going on from what is on disk."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from draft_service.training.announcement import OWN_TOKENS
from draft_service.training.capture import capture_features
from draft_service.training.checkpoint import bind_directory, owned
from draft_service.training.draft_model import train_draft_model
from draft_service.training.eagle_training import train_eagle
from draft_service.training.early_exit import exit_layer_of, train_early_exit
from draft_service.training.features import FeatureFiles, filled_alone, open_features
from draft_service.training.material import Material
from draft_service.training.medusa import train_medusa
from draft_service.training.openings import Opening, Openings, read_prompts
from draft_service.training.own_text import BATCH_SIZE, TEXT_FILE, move_features, write_own_text
from draft_service.training.progress import Progress
from draft_service.training.settings import TrainingSettings
from draft_service.training.text import TrainingText, read_text
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import LoadedModel, load_model
from paceline.engine.model_directory import resolve_model
from paceline.errors import InvalidConfig

_WITHOUT_INFLUENCE = frozenset(
    {"log_level", "cache_dir", "num_threads", "device", "features", "output", "evaluate_every"}
)
"""Settings that may change when a training goes on."""


def run(settings: TrainingSettings) -> Path:
    """Everything; returns the directory of the trained drafter. Raises `InvalidConfig`."""
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    with owned(Path(settings.output).expanduser()):
        return _Stages(settings).run()


def check_layers(module: PreTrainedModel) -> None:
    """Raise `InvalidConfig` unless the target's layers are where training looks for them."""
    decoder: Any = module.base_model
    for name in ("layers", "norm", "rotary_emb"):
        if not hasattr(decoder, name):
            raise InvalidConfig(
                f"the target {module.config.model_type!r} has no {name} in its decoder; expected a "
                "model put together like Llama's to train a drafter for"
            )


def model_digest(loaded: LoadedModel) -> str:
    """Of the weights that a drafter depends on most closely."""
    matrix = loaded.module.get_output_embeddings().weight
    decoder: Any = loaded.module.base_model
    last = [weight for _, weight in sorted(decoder.layers[-1].state_dict().items())]
    return _digest(*(weight.detach().float().cpu().numpy() for weight in [matrix, *last]))


class _Stages:
    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._output = Path(settings.output).expanduser()
        self._progress = Progress(self._output)
        model = settings.model or DEFAULT_MODEL
        cache_dir = Path(settings.cache_dir).expanduser() if settings.cache_dir else None
        self._loaded = load_model(
            model, dtype="float32", device=settings.device, cache_dir=cache_dir
        )
        self._directory = resolve_model(model, cache_dir)
        check_layers(self._loaded.module)
        config = self._loaded.module.config.get_text_config()
        num_layers = config.num_hidden_layers
        self._vocab_size: int = config.vocab_size
        self._layer_ids = _layer_ids(settings, num_layers)
        self._hidden_size: int = config.hidden_size
        self._target = model_digest(self._loaded)

    def run(self) -> Path:
        settings = self._settings
        if settings.data:
            text = read_text(Path(settings.data).expanduser(), self._vocab_size)
            self._bind(_digest(text.ids, text.starts, text.answer_starts))
        else:
            self._bind(None)
            text = self._own_text()
        with filled_alone(self._features_directory, self._progress.say):
            features = self._features(text)
        material = Material.of(
            settings, self._loaded, text, features, self._layer_ids, self._progress
        )
        match settings.drafter:
            case "eagle":
                return train_eagle(material)
            case "medusa":
                return train_medusa(material)
            case "early-exit":
                return train_early_exit(material)
            case "draft-model":
                return train_draft_model(material)

    def _bind(self, data: str | None) -> None:
        """The output directory belongs to what decides the trained weights."""
        prompts = self._settings.prompts
        facts = self._settings.model_dump(mode="json", exclude=set(_WITHOUT_INFLUENCE)) | {
            "model": f"{self._loaded.name} {self._target}",
            "data": data,
            "prompts": _file_digest(Path(prompts).expanduser()) if prompts else None,
        }
        bind_directory(self._output, facts)

    @property
    def _features_directory(self) -> Path:
        features = self._settings.features
        return Path(features).expanduser() if features else self._output / "features"

    def _features(self, text: TrainingText) -> FeatureFiles:
        """All features of the text, or of the part of it that is wanted."""
        settings = self._settings
        features = open_features(
            self._features_directory,
            text,
            self._hidden_size,
            self._layer_ids,
            self._target,
            settings.seed if settings.data else None,
        )
        if not settings.data:
            move_features(self._output, features, self._rate("features", features.num_sequences))
        elif settings.num_tokens is not None:
            features = features.front(settings.num_tokens)
        self._capture(features)
        return features

    def _own_text(self) -> TrainingText:
        loaded, settings = self._loaded, self._settings
        num_tokens = settings.num_tokens or OWN_TOKENS
        if not (self._output / TEXT_FILE).exists():
            self._progress.say(
                f"The model writes its text, {BATCH_SIZE} sequences at a time, up to "
                f"{num_tokens:,} tokens and the end of the last batch"
            )
        return write_own_text(
            self._output,
            loaded.module,
            self._layer_ids,
            self._openings(),
            loaded.eos_token_ids,
            loaded.max_model_len,
            num_tokens,
            settings.seed,
            self._rate("own text", num_tokens, "tokens"),
        )

    def _openings(self) -> Callable[[int], Opening | None]:
        openings = Openings(self._loaded.name, self._directory)
        if not self._settings.prompts:
            empty = openings.empty()
            return lambda index: empty
        prompts = read_prompts(Path(self._settings.prompts).expanduser())
        found = [openings.of_prompt(prompt) for prompt in prompts]
        fitting = [o for o in found if len(o.token_ids) <= self._loaded.max_model_len // 2]
        if not fitting:
            raise InvalidConfig(
                f"the prompts {self._settings.prompts!r}: all are longer than "
                f"{self._loaded.max_model_len // 2} tokens, half of what the model was made for"
            )
        if len(fitting) < len(found):
            self._progress.say(
                f"{len(found) - len(fitting)} prompts are left out: they are longer than "
                f"{self._loaded.max_model_len // 2} tokens"
            )
        order = np.random.default_rng(self._settings.seed).permutation(len(fitting))
        return lambda index: fitting[order[index]] if index < len(order) else None

    def _capture(self, features: FeatureFiles) -> None:
        num_missing = features.num_sequences - features.num_captured
        if num_missing:
            self._progress.say(f"Computing the hidden states of {num_missing:,} sequences")
        say = self._rate("features", features.num_sequences)
        capture_features(self._loaded.module, self._layer_ids, features, say)

    def _rate(self, what: str, total: int, unit: str = "sequences") -> Callable[[int], None]:
        started = time.monotonic()

        def say(done: int) -> None:
            minutes = (time.monotonic() - started) / 60
            self._progress.say(f"{what}: {done:,} of {total:,} {unit}, {minutes:.1f} minutes")

        return say


def _layer_ids(settings: TrainingSettings, num_layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs are captured: EAGLE-3's, which all drafters share that need
    no other one."""
    shared = (2, num_layers // 2, num_layers - 3)
    if settings.drafter != "early-exit":
        return shared
    exit_layer = exit_layer_of(settings, num_layers)
    return shared if exit_layer in shared else (exit_layer,)


def _file_digest(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""  # read_prompts says what is wrong


def _digest(*arrays: NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
