"""Requests whose answers are known in advance, asked in every way there is.

Every request is made without drafts first; then with several methods and numbers of drafts, each
over HTTP, as an HTTP stream and over gRPC. All must agree on text, token ids, finish reason and
usage. A bias of 100 for one token makes answers that are known in advance, whatever the weights.
"""

import asyncio
import itertools
from collections.abc import Sequence

from answers import OFF, Answer, Body, FrontEnd, ask, check_equal, drafts
from processes import Coordinator

MODES = (
    drafts("suffix", 1),
    drafts("suffix", 3),
    drafts("suffix", 8),
    drafts("draft-model", 4),
)
MODEL_MODES = (*MODES, drafts("hybrid", 5))
"""With the head that comes with the default model, for which the table model has no layers."""
HA, ONE, HALF_SMILE, OTHER_HALF = 421, 33, 10813, 38887
"""Tokens of the default model: " ha", "1", and the two of a smiling face."""
SELDOM = 30_000
"""A token that only the test that names it asks for."""
SMILES = "🙂" * 8
# Of the two halves that are favoured the model itself takes the one that fits.
ONLY_SMILES: Body = {"temperature": 0, "logit_bias": {str(HALF_SMILE): 60, str(OTHER_HALF): 60}}
REPLACEMENT = "\ufffd"


def force(token_id: int) -> Body:
    """Settings with which every token of the answer is this one."""
    return {"temperature": 0, "logit_bias": {str(token_id): 100}}


async def ask_every_way(
    coordinator: Coordinator,
    body: Body,
    modes: Sequence[Body] = MODES,
    front_ends: Sequence[FrontEnd] = tuple(FrontEnd),
) -> Answer:
    """The one answer that comes whatever the drafts and the way to ask."""
    plain = await ask(coordinator, {**body, "speculation": OFF})
    ways = [*itertools.product((OFF, *modes), front_ends)]
    answers = await asyncio.gather(
        *(ask(coordinator, {**body, "speculation": mode}, end) for mode, end in ways)
    )
    for (mode, front_end), answer in zip(ways, answers, strict=True):
        check_equal(answer, plain, f"{body} with {mode} over {front_end.value}")
    return plain
