"""What a table model says, walked from scratch: no cache, no rounds, no drafts."""

from array import array
from collections.abc import Sequence

import numpy as np

from paceline.engine.grammar import Grammars
from paceline.engine.sampling import choose_token
from paceline.engine.table_model import TableLaw
from paceline.rounds import SequenceSettings


def next_token(
    law: TableLaw,
    token_ids: Sequence[int],
    settings: SequenceSettings,
    grammars: Grammars | None = None,
) -> int:
    """The token behind `token_ids`; a grammar is asked as if it had never been asked before."""
    row = law.logits(np.asarray(token_ids), 1)[0]
    state = grammars.state(settings) if grammars else None
    allowed = state.allowed(array("I", token_ids)) if state else None
    return choose_token(row, settings, len(token_ids), token_ids, allowed)


def plain_text(
    law: TableLaw,
    prompt: Sequence[int],
    settings: SequenceSettings,
    grammars: Grammars | None = None,
) -> list[int]:
    """The tokens behind the prompt, a final stop token included."""
    token_ids = list(prompt)
    while len(token_ids) < settings.max_length:
        token_ids.append(next_token(law, token_ids, settings, grammars))
        if token_ids[-1] in settings.stop_token_ids:
            break
    return token_ids[len(prompt) :]
