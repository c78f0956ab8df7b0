"""What a table model says, walked from scratch: no cache, no rounds, no drafts."""

from collections.abc import Sequence

import numpy as np

from paceline.engine.sampling import choose_token
from paceline.engine.table_model import TableLaw
from paceline.rounds import SequenceSettings


def next_token(law: TableLaw, token_ids: Sequence[int], settings: SequenceSettings) -> int:
    """The token behind `token_ids`."""
    row = law.logits(np.asarray(token_ids), 1)[0]
    return choose_token(row, settings, len(token_ids), token_ids)


def plain_text(law: TableLaw, prompt: Sequence[int], settings: SequenceSettings) -> list[int]:
    """The tokens behind the prompt, a final stop token included."""
    token_ids = list(prompt)
    while len(token_ids) < settings.max_length:
        token_ids.append(next_token(law, token_ids, settings))
        if token_ids[-1] in settings.stop_token_ids:
            break
    return token_ids[len(prompt) :]
