"""Lets a target write text, many sequences at once, and keeps its hidden states as it goes.

All sequences of a batch are at the same position, one token a step. What a sequence begins with and
what closes a user's turn is forced on it token by token, the rest it chooses itself; so a question,
the template around it and the answer are one pass over one KV cache, without a prefill and without
a second pass for the features.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from draft_service.training.logits_scaling import logits_scaling
from draft_service.training.openings import Opening
from paceline.engine.features import packed_features

LONGEST = 256
"""Most tokens of a turn or an answer: longer ones teach little that is new."""
COMPACT_SHARE = 1 / 8
"""Sequences that may have ended before the others are moved together, which copies the cache."""


@dataclass(slots=True)
class GeneratedSequence:
    """One sequence, while it is written and afterwards."""

    temperature: float
    """Of the answer; a user's turn is written at 1."""
    longest: int
    """Most tokens of a turn or answer that it chooses itself."""
    forced: "deque[int]"
    closing: Sequence[int]
    """What comes behind the user's turn that the target writes; empty where it writes none."""
    token_ids: list[int] = field(default_factory=list)
    answer_start: int = 0
    has_ended: bool = False
    num_chosen: int = 0
    """Tokens of the turn, and then of the answer, that it chose itself."""

    states: list[Tensor] = field(default_factory=list)
    """For every token float16 `[width]`, as `capture.hidden_states` has them."""

    @property
    def is_finished(self) -> bool:
        """Whether it has its last token, and the states of that."""
        return self.has_ended and len(self.states) == len(self.token_ids)

    @property
    def chooses(self) -> bool:
        """Whether its next token is its own choice."""
        return not (self.forced or self.has_ended)

    @property
    def next_temperature(self) -> float:
        """At which it chooses."""
        return 1.0 if self.closing else self.temperature

    def append(self, choice: int, end_ids: frozenset[int]) -> None:
        """Go on by a token: what is forced, or `choice`."""
        if self.forced:
            self.token_ids.append(self.forced.popleft())
        elif self.closing:
            self._append_to_turn(choice, end_ids)
        else:
            self.answer_start = self.answer_start or len(self.token_ids)
            self.token_ids.append(choice)
            self.num_chosen += 1
            self.has_ended = choice in end_ids or self.num_chosen == self.longest

    def _append_to_turn(self, choice: int, end_ids: frozenset[int]) -> None:
        self.num_chosen += 1
        if choice in end_ids or choice == self.closing[0] or self.num_chosen > self.longest:
            self.forced.extend(self.closing)
            self.closing, self.num_chosen = (), 0
            self.token_ids.append(self.forced.popleft())
        else:
            self.token_ids.append(choice)


@torch.inference_mode()
def generate(
    module: PreTrainedModel,
    layer_ids: Sequence[int],
    openings: Sequence[Opening],
    temperatures: Sequence[float],
    end_ids: frozenset[int],
    max_length: int,
    generator: torch.Generator,
) -> list[GeneratedSequence]:
    """The sequences, in order."""
    longest = min(LONGEST, max_length // 4)
    sequences = [
        GeneratedSequence(temperature, longest, deque(opening.token_ids), opening.closing)
        for opening, temperature in zip(openings, temperatures, strict=True)
    ]
    for sequence in sequences:
        sequence.append(0, end_ids)
    cache = Cache(layer_class_to_replicate=RoomyLayer)
    batch = list(sequences)
    while batch:
        last, kept_states = _run(module, layer_ids, cache, batch)
        for sequence, states in zip(batch, kept_states, strict=True):
            if not sequence.is_finished:
                sequence.states.append(states)
        going_on = [row for row, sequence in enumerate(batch) if not sequence.is_finished]
        if len(batch) - len(going_on) >= max(1.0, COMPACT_SHARE * len(batch)):
            batch, last = [batch[row] for row in going_on], last[going_on]
            for layer in cache.layers:
                cast(RoomyLayer, layer).select(going_on)
        choosing = [row for row, sequence in enumerate(batch) if sequence.chooses]
        temperatures = [batch[row].next_temperature for row in choosing]
        choices = _choices(module, last[choosing], temperatures, generator)
        of_row = dict(zip(choosing, choices, strict=True))
        for row, sequence in enumerate(batch):
            if not sequence.is_finished:
                sequence.append(of_row.get(row, 0), end_ids)
    return sequences


def _run(
    module: PreTrainedModel,
    layer_ids: Sequence[int],
    cache: Cache,
    batch: Sequence[GeneratedSequence],
) -> tuple[Tensor, Tensor]:
    """One token of every row: the last states, and all that is kept of it, on the CPU."""
    output: Any = module.base_model(
        torch.tensor([[sequence.token_ids[-1]] for sequence in batch], device=module.device),
        cache=cache,
        use_cache=True,
        output_hidden_states=True,
    )
    last = output.last_hidden_state[:, 0]
    inputs = [output.hidden_states[layer][:, 0] for layer in layer_ids]
    return last, packed_features([*inputs, last]).cpu()


def _choices(
    module: PreTrainedModel, states: Tensor, temperatures: list[float], generator: torch.Generator
) -> list[int]:
    if not temperatures:
        return []
    output: Any = module.get_output_embeddings()
    logits = output(states).float() / logits_scaling(module)
    best = logits.argmax(dim=-1)
    heat = torch.tensor(temperatures, device=logits.device)[:, None]
    cumulated = torch.softmax(logits / heat.clamp(min=1e-3), dim=-1).cumsum(dim=-1)
    numbers = torch.rand((len(states), 1), generator=generator).to(logits.device)
    drawn = torch.searchsorted(cumulated, numbers * cumulated[:, -1:], right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    return torch.where(heat[:, 0] == 0, best, drawn).tolist()


class RoomyLayer(DynamicLayer):
    """Keys and values of a layer with room for more, so that a step copies only its own."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append `[batch, num_heads, n, head_dim]`; returns all."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._storage = key_states.new_empty(0)
        if end > (self._storage.shape[3] if start else 0):
            room = max(64, 2 * start, end)
            shape = (2, *key_states.shape[:2], room, key_states.shape[3])
            grown = key_states.new_empty(shape)
            if start:
                grown[:, :, :, :start] = self._storage[:, :, :, :start]
            self._storage = grown
        self._storage[0, :, :, start:end] = key_states
        self._storage[1, :, :, start:end] = value_states
        self.keys, self.values = self._storage[:, :, :, :end]
        return self.keys, self.values

    def select(self, rows: list[int]) -> None:
        """Keep these rows of the batch."""
        length = self.get_seq_length()
        self._storage = self._storage[:, rows]
        self.keys, self.values = self._storage[:, :, :, :length]
