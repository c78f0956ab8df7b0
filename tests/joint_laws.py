"""The law of the first tokens of an answer: by the table, and by counting answers."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from chance import chi_square, chi_square_limit

from paceline.engine.sampling import token_law
from paceline.engine.table_model import TableLaw
from paceline.rounds import SequenceSettings

Answer = tuple[int, ...]

FEWEST = 5
"""Expected answers of a cell; rarer ones are counted together, as the statistic wants it."""


def joint_law(
    law: TableLaw, prompt: Sequence[int], settings: SequenceSettings
) -> dict[Answer, float]:
    """The probability of every answer that ends at `settings.max_length` or with a stop token."""
    ended: dict[Answer, float] = {}
    running: dict[Answer, float] = {(): 1.0}
    while running:
        answer, share = running.popitem()
        context = [*prompt, *answer]
        if len(context) == settings.max_length or set(answer) & {*settings.stop_token_ids}:
            ended[answer] = share
            continue
        logits = law.logits(np.asarray(context), 1)[0]
        for token_id, probability in enumerate(token_law(logits, settings, len(context), context)):
            if probability:
                running[*answer, token_id] = share * float(probability)
    return ended


def is_plausible(answers: Iterable[Answer], law: dict[Answer, float]) -> bool:
    """Whether answers follow a law; a right one is called wrong once in a million times."""
    counted = Counter(answers)
    if not counted.keys() <= law.keys():
        return False
    total = counted.total()
    cells = [(counted[answer], total * share) for answer, share in law.items()]
    rare = [cell for cell in cells if cell[1] < FEWEST]
    cells = [cell for cell in cells if cell[1] >= FEWEST]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(expected for _, expected in rare)))
    counts, expected = zip(*cells, strict=True)
    return chi_square(counts, expected) < chi_square_limit(len(cells) - 1)
