"""The EAGLE head of a draft worker, from its directory to something that runs.

Needs the checkpoint directory of the target beside it, of which it reads the config, the tokenizer
and, where the head has none of its own, the embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.eagle_checkpoint import check_fits, read_head_weights
from paceline.engine.eagle_config import read_head_config
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.loading import DTYPES, load_tokenizer, read_config
from paceline.engine.model_directory import resolve_model
from paceline.engine.tokenizer_files import TokenizerFile, tokenizer_digest, vocabulary_size
from paceline.engine.worker_model import (
    KV_SHARE_OF_MEMORY,
    ModelSettings,
    cache_directory,
    free_memory,
)


class HeadSettings(ModelSettings, Protocol):
    """The settings of a worker that say which head it runs, for which `model`, and how."""

    @property
    def head(self) -> str: ...
    @property
    def allow_pickle(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkerHead:
    """A head that is ready to run, and what its worker says about it."""

    head: EagleHead
    name: str
    feature_layers: tuple[int, ...]
    tokenizer_files: Sequence[TokenizerFile]
    kv_cache_tokens: int
    """Tokens that there is room for, all sequences together."""

    @property
    def tokenizer_digest(self) -> str:
        """Digest of the tokens, which are the target's."""
        return tokenizer_digest(self.tokenizer_files)


def build_worker_head(settings: HeadSettings, dtype: str) -> WorkerHead:
    """Load the head that the settings name, `dtype` as `prepare_torch` says; `InvalidConfig`."""
    config = read_head_config(settings.head)
    model = settings.model or DEFAULT_MODEL
    directory = resolve_model(model, cache_directory(settings))
    model_config = read_config(model, directory)
    text_config = model_config.get_text_config()
    target = Target(
        name=model,
        directory=directory,
        hidden_size=text_config.hidden_size,
        vocab_size=text_config.vocab_size,
        num_layers=text_config.num_hidden_layers,
        has_tied_embeddings=bool(model_config.tie_word_embeddings),
    )
    check_fits(settings.head, config, target)
    weights = read_head_weights(settings.head, config, target, settings.allow_pickle)
    _, tokenizer_files = load_tokenizer(model, directory, {})
    vocab_size = min(vocabulary_size(tokenizer_files), target.vocab_size)
    runnable = EagleHead(config, weights, vocab_size, DTYPES[dtype])
    affordable = int(KV_SHARE_OF_MEMORY * free_memory()) // runnable.bytes_per_token
    return WorkerHead(
        head=runnable,
        name=Path(settings.head).expanduser().resolve().name,
        feature_layers=config.feature_layers(target.num_layers),
        tokenizer_files=tokenizer_files,
        kv_cache_tokens=settings.kv_cache_tokens or affordable,
    )
