"""Tokens of many rows of logits at once, on the device where the rows are.

Says what `choose_token` and `confidence` of `paceline.engine.sampling` say of a row whose logits
the settings leave as they are, token for token: behind the pass, in a dozen torch operations for
greedy rows and up to 460 for others, however many they are (`paceline.engine.captured_choice`). A
row's answer depends on nothing but the row and its parameters: whatever is summed is an integer,
and equals rank by token id. The cut of top-p may lie a token elsewhere, as
`paceline.engine.device_cut` says.

Only tokens that may win get the noise by its own logarithm (`paceline.engine.device_noise`): those
with the highest sums by the device's logarithm, which is right within a far smaller margin than the
distance to all others. Where it is not, and where a row holds no finite highest logit, the answer
is `LOOK`: whoever asked then looks at the row, and finds out or raises what there is to raise.

Has no shapes that depend on values and waits for no device, so that a CUDA graph may capture it.

Dimensions: R rows, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from paceline.engine.device_cut import kept_tokens, mass_of_best, masses
from paceline.engine.device_noise import Places, gumbel_of, uniform, uniform_rows
from paceline.engine.sampling import HOPELESS
from paceline.rounds import SequenceSettings

LOOK = -1
"""In place of a token id: this cannot be said here."""

_NUM_RIVALS = 8
_MARGIN = 1e-9
"""Far above the error of sums by a library's logarithm, which is some 1e-14."""
_MOST_LISTED = 256
"""After top-k of up to so many, noise is computed for the kept tokens only."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stages:
    """What has to be done for a row; rows for which it is the same are done together."""

    samples: bool
    has_top_k: bool = False
    has_top_p: bool = False
    num_listed: int = 0
    """At least as many tokens as top-k keeps, when noise is wanted for those only; else 0."""
    has_confidence: bool = False


class RowParameters(NamedTuple, Generic[T]):
    """What the choice of a row depends on; integers of up to 32 bits, which a double holds too."""

    seed_low: T
    seed_high: T
    choice: T
    position: T
    temperature: T
    """1 for a greedy row, whose confidence is the one at this temperature."""
    lowest: T
    """No token with a lower scaled logit is kept, by min-p or since it cannot win."""
    top_k: T
    top_p: T


def stages_of(settings: SequenceSettings, vocab_size: int, has_confidence: bool) -> Stages:
    """The stages of the rows of a sequence."""
    if settings.temperature == 0.0:
        return Stages(samples=False, has_confidence=has_confidence)
    has_top_k = 0 < settings.top_k < vocab_size
    is_listed = has_top_k and settings.top_k <= _MOST_LISTED
    return Stages(
        samples=True,
        has_top_k=has_top_k,
        has_top_p=settings.top_p < 1.0,
        # Powers of two, so that there are few kinds.
        num_listed=1 << (settings.top_k - 1).bit_length() if is_listed else 0,
        has_confidence=has_confidence,
    )


def row_parameters(settings: SequenceSettings, position: int) -> RowParameters[float]:
    """The parameters of the row that chooses the token at `position`."""
    return RowParameters(
        seed_low=settings.seed & 0xFFFFFFFF,
        seed_high=settings.seed >> 32 & 0xFFFFFFFF,
        choice=settings.choice,
        position=position,
        temperature=settings.temperature or 1.0,
        lowest=max(HOPELESS, math.log(settings.min_p)) if settings.min_p > 0.0 else HOPELESS,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )


@torch.inference_mode()
def choose_tokens(
    logits: Tensor,  # [R, V]; not changed
    parameters: Tensor,  # [R, fields of `RowParameters`] in double precision
    stages: Stages,  # of every row
) -> Tensor:
    """Token ids and confidences as doubles [R, 2]; confidences are 0 where none are wanted."""
    logits = logits.float()
    highest = logits.amax(1, keepdim=True)  # NaN, if there is one
    confidences = torch.zeros_like(highest, dtype=torch.float64)
    if not (stages.samples or stages.has_confidence):
        token_ids = _first(logits == highest)
    else:
        fields = RowParameters(*parameters.split(1, dim=1))
        scaled = logits.double().sub_(highest.double()).div_(fields.temperature)
        mass = masses(scaled) if stages.has_top_p or stages.has_confidence else None
        if stages.has_confidence and mass is not None:
            confidences = mass_of_best(logits.shape[-1]) / mass.sum(1, keepdim=True).double()
        if stages.samples:
            is_kept = _kept(logits, scaled, mass, fields, stages)
            token_ids = _sampled(scaled, is_kept, fields, stages.num_listed)
        else:
            token_ids = _first(scaled == 0.0)
    token_ids = torch.where(highest.isfinite(), token_ids, LOOK)
    return torch.cat((token_ids.double(), confidences), dim=1)


def _kept(
    logits: Tensor,  # [R, V]
    scaled: Tensor,  # [R, V]
    mass: Tensor | None,  # [R, V]
    fields: RowParameters[Tensor],
    stages: Stages,
) -> Tensor:
    """The tokens [R, V] that the filters keep, less those that cannot win."""
    is_kept = scaled >= fields.lowest
    if stages.has_top_k or stages.has_top_p:
        top_k = fields.top_k.long() if stages.has_top_k else None
        top_p = fields.top_p if stages.has_top_p else None
        is_kept &= kept_tokens(logits, scaled, top_k, top_p, mass)
    return is_kept


def _sampled(
    scaled: Tensor,  # [R, V]
    is_kept: Tensor,  # [R, V]
    fields: RowParameters[Tensor],
    num_listed: int,
) -> Tensor:
    """The kept tokens with the highest sums of scaled logit and noise [R, 1]."""
    vocab_size = scaled.shape[-1]
    places = Places(*(field.long() for field in fields[:4]))
    if not num_listed:
        uniforms = uniform_rows(places, vocab_size)
        return _winner(torch.where(is_kept, scaled, -math.inf), uniforms)
    token_ids = _listed(is_kept, num_listed)
    is_token = token_ids < vocab_size
    token_ids = token_ids.clamp_(max=vocab_size - 1)
    values = torch.where(is_token, scaled.gather(1, token_ids), -math.inf)
    indices = _winner(values, uniform(places, token_ids))
    chosen = token_ids.gather(1, indices.clamp(min=0))
    return torch.where(indices == LOOK, LOOK, chosen)


def _winner(
    values: Tensor,  # [R, N], minus infinity for what is not kept
    uniforms: Tensor,  # [R, N]
) -> Tensor:
    """The indices [R, 1] of the highest sums of value and noise, the first ones of equals."""
    num_values = values.shape[-1]
    estimates = values - uniforms.log().neg_().log_()
    rivals = estimates.topk(min(_NUM_RIVALS, num_values))
    scores = values.gather(1, rivals.indices) + gumbel_of(uniforms.gather(1, rivals.indices))
    is_best = scores == scores.amax(1, keepdim=True)
    winners = torch.where(is_best, rivals.indices, num_values - 1).amin(1, keepdim=True)
    if num_values <= _NUM_RIVALS:
        return winners
    best, worst = rivals.values[:, :1], rivals.values[:, -1:]
    return torch.where(worst < best - _MARGIN, winners, LOOK)


def _listed(is_kept: Tensor, num_listed: int) -> Tensor:
    """The kept tokens [R, num_listed], ascending; behind them numbers that are no token's."""
    num_rows, vocab_size = is_kept.shape
    slots = torch.where(is_kept, is_kept.cumsum(1) - 1, num_listed).clamp_(max=num_listed)
    token_ids = slots.new_full((num_rows, num_listed + 1), vocab_size)
    every_id = torch.arange(vocab_size, device=is_kept.device).expand_as(slots)
    return token_ids.scatter_(1, slots, every_id)[:, :num_listed].contiguous()


def _first(is_one: Tensor) -> Tensor:
    """The index [R, 1] of the first one that is: `argmax` does not promise the first on a GPU."""
    vocab_size = is_one.shape[-1]
    every_id = torch.arange(vocab_size, device=is_one.device)
    return torch.where(is_one, every_id, vocab_size).amin(1, keepdim=True)
