"""What a pass hands out where its tokens are chosen on the device (`DeviceRows`).

Rows with the same stages (`paceline.engine.device_sampling`) are done together, whatever sequences
they belong to. What the choice depends on goes to the device in copies that nobody waits for, and
the tokens come back in one, which is the end of the pass.

Dimensions: N rows of the pass, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.engine.captured_choice import MAX_ROWS, CapturedChoice
from paceline.engine.device_rows import ChosenToken, DeviceRows
from paceline.engine.device_sampling import (
    LOOK,
    RowParameters,
    Stages,
    row_parameters,
    stages_of,
)
from paceline.engine.logits_processing import changes_nothing
from paceline.engine.model import PassSequence, Rows
from paceline.engine.pass_plan import PassPlan


class TokenChooser:
    """Chooses behind the passes of one model."""

    def __init__(self, device: torch.device) -> None:
        self._choice = CapturedChoice(device)

    def rows(
        self,
        batch: Sequence[PassSequence],
        plan: PassPlan[Any],
        logits: Tensor,  # [N, V], behind the wanted rows of the plan
    ) -> list[Rows]:
        """The rows of each sequence: on the device where it brought settings, else on the host."""
        chosen = self._chosen(batch, plan, logits)
        bounds = np.cumsum([0, *(part.num_logits for part in batch)]).tolist()
        shares = [slice(*bound) for bound in zip(bounds, bounds[1:], strict=False)]
        unsettled = [
            share for part, share in zip(batch, shares, strict=True) if part.settings is None
        ]
        copied = iter(_copied([logits[share] for share in unsettled]))
        return [
            next(copied) if part.settings is None else DeviceRows(logits[share], chosen[share])
            for part, share in zip(batch, shares, strict=True)
        ]

    def _chosen(
        self, batch: Sequence[PassSequence], plan: PassPlan[Any], logits: Tensor
    ) -> list[ChosenToken | None]:
        """What each row says, as far as the settings leave its logits as they are."""
        chosen: list[ChosenToken | None] = [None] * len(plan.wanted_rows)
        groups = _groups(batch, plan, logits.shape[1])
        order = [row.number for group in groups.values() for row in group]
        if not order:
            return chosen
        on_device = torch.tensor(order, pin_memory=logits.is_cuda).to(
            logits.device, non_blocking=True
        )
        answers: list[Tensor] = []
        first = 0
        for stages, group in groups.items():
            for start in range(0, len(group), MAX_ROWS):
                part = group[start : start + MAX_ROWS]
                rows = on_device[first : first + len(part)]
                parameters = torch.tensor([row.parameters for row in part], dtype=torch.float64)
                answers.append(self._choice.choose(logits, rows, parameters, stages))
                first += len(part)
        for index, (token_id, confidence) in zip(order, torch.cat(answers).tolist(), strict=True):
            if token_id != LOOK:
                chosen[index] = ChosenToken(int(token_id), confidence)
        return chosen


class _Row(NamedTuple):
    number: int
    """Among the wanted rows of the pass."""
    parameters: RowParameters[float]


def _groups(
    batch: Sequence[PassSequence], plan: PassPlan[Any], vocab_size: int
) -> dict[Stages, list[_Row]]:
    """The rows that say a token by themselves."""
    groups: dict[Stages, list[_Row]] = {}
    sequences = [part for part in batch for _ in range(part.num_logits)]
    for index, (part, row) in enumerate(zip(sequences, plan.wanted_rows, strict=True)):
        settings, position = part.settings, plan.positions[row] + 1
        if settings is not None and changes_nothing(settings, position):
            stages = stages_of(settings, vocab_size, part.wants_confidence)
            groups.setdefault(stages, []).append(_Row(index, row_parameters(settings, position)))
    return groups


def _copied(parts: Sequence[Tensor]) -> list[Rows]:
    """All in one copy."""
    if not parts:
        return []
    rows = torch.cat([*parts]).float().cpu().numpy()
    return [*np.split(rows, np.cumsum([len(part) for part in parts])[:-1])]
