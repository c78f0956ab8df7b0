"""What a pass hands out where its tokens are chosen on the device (`DeviceRows`).

Rows with the same stages (`paceline.engine.device_sampling`) are done together, whatever sequences
they belong to. What the choice depends on goes to the device in one copy that nobody waits for, and
the tokens come back in one, which is the end of the pass.

Dimensions: N rows of the pass, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.engine.device_rows import ChosenToken, DeviceRows
from paceline.engine.device_sampling import (
    LOOK,
    Stages,
    choose_tokens,
    row_parameters,
    stages_of,
)
from paceline.engine.logits_processing import changes_nothing
from paceline.engine.model import PassSequence, Rows
from paceline.engine.pass_plan import PassPlan

_ROWS_AT_A_TIME = {"cpu": 8}
"""So many keep what they need within a core's cache."""
_MOST_ROWS_AT_A_TIME = 32
"""So many take 300 MB of a device for a vocabulary of 128,000 tokens."""


@torch.inference_mode()
def chosen_rows(
    batch: Sequence[PassSequence],
    plan: PassPlan[Any],
    logits: Tensor,  # [N, V], behind the wanted rows of the plan
) -> list[Rows]:
    """The rows of each sequence: on the device where it brought settings, else on the host."""
    chosen = _chosen(batch, plan, logits)
    bounds = np.cumsum([0, *(part.num_logits for part in batch)]).tolist()
    shares = [slice(*bound) for bound in zip(bounds, bounds[1:], strict=False)]
    unsettled = [share for part, share in zip(batch, shares, strict=True) if part.settings is None]
    copied = iter(_copied([logits[share] for share in unsettled]))
    return [
        next(copied) if part.settings is None else DeviceRows(logits[share], chosen[share])
        for part, share in zip(batch, shares, strict=True)
    ]


def _copied(parts: Sequence[Tensor]) -> list[Rows]:
    """All in one copy."""
    if not parts:
        return []
    rows = torch.cat([*parts]).float().cpu().numpy()
    return [*np.split(rows, np.cumsum([len(part) for part in parts])[:-1])]


def _chosen(
    batch: Sequence[PassSequence], plan: PassPlan[Any], logits: Tensor
) -> list[ChosenToken | None]:
    """What each row says, as far as the settings leave its logits as they are."""
    groups: dict[Stages, list[tuple[float, ...]]] = {}
    sequences = [part for part in batch for _ in range(part.num_logits)]
    for index, (part, row) in enumerate(zip(sequences, plan.wanted_rows, strict=True)):
        settings, position = part.settings, plan.positions[row] + 1
        if settings is not None and changes_nothing(settings, position):
            stages = stages_of(settings, logits.shape[1], part.wants_confidence)
            fields = index, *row_parameters(settings, position)
            groups.setdefault(stages, []).append(fields)
    chosen: list[ChosenToken | None] = [None] * len(sequences)
    order = [int(fields[0]) for rows in groups.values() for fields in rows]
    for index, token_id, confidence in zip(order, *_answers(groups, logits), strict=True):
        if token_id != LOOK:
            chosen[index] = ChosenToken(int(token_id), confidence)
    return chosen


def _answers(groups: dict[Stages, list[tuple[float, ...]]], logits: Tensor) -> list[list[float]]:
    """Token ids and confidences of all groups, one behind the other."""
    if not groups:
        return [[], []]
    table = torch.tensor(
        [fields for rows in groups.values() for fields in rows],
        dtype=torch.float64,
        pin_memory=logits.is_cuda,
    ).to(logits.device, non_blocking=True)
    num_at_once = _ROWS_AT_A_TIME.get(logits.device.type, _MOST_ROWS_AT_A_TIME)
    answers = [
        choose_tokens(logits[part[:, 0].long()], part[:, 1:].T, stages)
        for stages, group in zip(
            groups, table.split([len(rows) for rows in groups.values()]), strict=True
        )
        for part in group.split(num_at_once)
    ]
    both: list[list[float]] = torch.cat(answers, dim=1).tolist()
    return both
