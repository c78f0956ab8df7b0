"""A causal language model from transformers as a `LanguageModel`.

Plans each pass, has it run (`pass_runner`), and keeps what comes out of it. Knows nothing about
drafts and acceptance, and nothing about where a model came from.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engine.chosen_rows import TokenChooser
from paceline.engine.device import CPU, Device
from paceline.engine.device_rows import host_rows
from paceline.engine.feature_projection import FeatureProjection
from paceline.engine.features import check_feature_layers
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.model import Features, Logits, PassSequence, Rows
from paceline.engine.pass_plan import plan_pass
from paceline.engine.pass_runner import PassRunner
from paceline.engine.ranks.leader import LeadingRunner
from paceline.engine.support import check_supported
from paceline.errors import InvalidConfig

if TYPE_CHECKING:
    from paceline.engine.ranks.sharding import RankShare

PROBE_LENGTH = 40
"""Tokens of the fixed text behind `numerics`."""


class TransformerModel:
    """Owns `model` from here on: its weights are repacked in place.

    `max_model_len` is at most what the model was made for; `kv_cache_tokens` is the room for the KV
    of all sequences, rounded up to cells of 512 tokens, or blocks of 256 where the device pages it.
    The hidden states of `feature_layers` are kept, and go through `projection` on their way out.
    With a `share` this is rank 0, and the other ranks follow. Raises `InvalidConfig`, naming the
    feature, for a model that cannot be run exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        max_model_len: int,
        kv_cache_tokens: int,
        use_packed_linears: bool = True,
        feature_layers: Sequence[int] = (),
        projection: FeatureProjection | None = None,
        device: Device = CPU,
        share: "RankShare | None" = None,
    ) -> None:
        check_supported(model, device)
        config = model.config
        check_feature_layers(feature_layers, config.num_hidden_layers)
        if max_model_len > config.max_position_embeddings:
            raise InvalidConfig(
                f"max_model_len is {max_model_len}; the model was made for at most "
                f"{config.max_position_embeddings} tokens."
            )
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._model_type = config.model_type
        self._dtype = model.dtype
        self._device = device
        runner = PassRunner(
            model,
            max_model_len,
            use_packed_linears,
            feature_layers,
            device,
            share,
            kv_cache_tokens,
        )
        self._runner = runner if share is None else LeadingRunner(runner, share.group)
        self._num_ranks = 1 if share is None else share.group.size
        self._kept_size: int = len(feature_layers) * config.hidden_size
        self._projection = projection
        self._chooser = TokenChooser(device.torch_device) if device.chooses_tokens else None
        storage = self._runner.storage
        self._kv_cache: KVCache[Any] = KVCache(storage, -(-kv_cache_tokens // storage.cell_size))
        self.varies_with_width = not self._runner.has_exact_rows
        """Whether a row's bits depend on how it is computed; never on a CPU."""
        self.numerics = self._digest()

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model can emit (without padding rows)."""
        return self._vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self._max_model_len

    @property
    def kv_cache(self) -> KVCache[Any]:
        """The KV of all sequences of this model."""
        return self._kv_cache

    @property
    def feature_size(self) -> int:
        """Numbers in the features of a token; 0 when none are kept."""
        return self._kept_size if self._projection is None else self._projection.size

    def features(self, kv: KVSequence[Any], start: int, end: int) -> Features:
        """The features `[end - start, feature_size]` of computed tokens."""
        kept = kv.storage.feature_rows(start, end).cpu()
        if self._projection is not None:
            return self._projection.project(kept)
        rows: Features = kept.numpy()
        return rows

    def forward(self, batch: Sequence[PassSequence]) -> list[Rows]:
        """Run one pass; return float32 `[num_logits, V]` per sequence, in order."""
        plan = plan_pass(batch, self._runner.storage)
        logits, features = self._runner.run(plan)
        if self._kept_size:
            _keep_features(batch, features)
        if not plan.wanted_rows:
            # Nobody waits for what follows: the pass would end, or fail, within the next one.
            self._device.synchronize()
        for part in batch:
            part.kv.num_tokens += part.num_stem
        if self._chooser is not None:
            return self._chooser.rows(batch, plan, logits[:, : self._vocab_size])
        rows_of_logits: Logits = logits[:, : self._vocab_size].float().cpu().numpy()
        bounds = np.cumsum([part.num_logits for part in batch])[:-1]
        return [*np.split(rows_of_logits, bounds)]

    def _digest(self) -> str:
        """Digest of everything that decides the bits of a row, and a first proof of exactness.

        If the rows of a fixed text depend on how they are computed raises `InvalidConfig`, or says
        so where the device takes that.
        """
        length = min(PROBE_LENGTH, self._max_model_len)
        text = [(7 * i * i + 3) % self._vocab_size for i in range(length)]
        kv = self._kv_cache.open(text, salt="")
        if not self._kv_cache.reserve(kv, len(text)):
            raise InvalidConfig("kv_cache_tokens is 0; room for at least one token was expected.")
        at_once = host_rows(self.forward([PassSequence(kv, text, len(text))])[0])
        self._kv_cache.truncate(kv, len(text) - 8)
        passes = (self.forward([PassSequence(kv, [token], 1)]) for token in text[-8:])
        one_by_one = [host_rows(rows) for (rows,) in passes]
        self._kv_cache.release(kv)
        if not np.array_equal(np.concatenate(one_by_one), at_once[-8:]):
            if self._device.refuses_varying_width:
                raise InvalidConfig(
                    f"The logits of this {self._model_type} model in {self._dtype} depend on the "
                    "width of a pass on this machine; another data type or number of threads may "
                    "help."
                )
            self.varies_with_width = True
        facts = (
            self._model_type,
            str(self._dtype),
            torch.__version__,
            *self._device.facts,
            str(self._num_ranks),
            "varies with the width" if self.varies_with_width else "exact",
        )
        digest = hashlib.blake2b("\n".join(facts).encode(), digest_size=16)
        digest.update(at_once.tobytes())
        return digest.hexdigest()


def _keep_features(batch: Sequence[PassSequence], features: Tensor) -> None:
    first_row = 0
    for part in batch:
        start, end_row = part.kv.num_tokens, first_row + len(part.token_ids)
        stem, tree = features[first_row:end_row].split((part.num_stem, len(part.tree)))
        part.kv.storage.keep_features(start, stem)
        if part.kv.tree is not None:
            part.kv.tree.keep_features(0, tree)
        first_row = end_row
