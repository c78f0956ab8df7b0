"""Log-probabilities of tokens that stand already: of a prompt, or of an answer that is resumed.

The target reads the tokens once more and says what it thought of each. That is a round of its own,
which commits nothing. Since a row of logits does not depend on how it came about, a token that was
committed before gets the very number that it had then. Plain Python: knows no network.
"""

from collections.abc import Sequence as Items
from contextlib import aclosing
from dataclasses import replace

from coordinator.decode_loop import Workers, another_target
from coordinator.sequence import Sequence, TargetLink
from paceline.rounds import NO_DRAFTS, SequenceSettings, TokenLogprobs
from paceline.token_log import TokenLog
from paceline.workers import WorkerLost


async def score(
    token_ids: Items[int], score_from: int, settings: SequenceSettings, workers: Workers
) -> list[TokenLogprobs]:
    """Of the tokens from position `score_from` on (at least 1), by any target.

    `settings` are those of the sequence that the tokens belong to. Raises `Unavailable` without a
    target, and `RoundRefused` when no target would take the tokens.
    """
    if score_from >= len(token_ids):
        return []
    # What bans tokens does not count here, and a grammar would have to be compiled first.
    settings = replace(settings, max_length=len(token_ids), grammar="")
    sequence = Sequence(settings, TokenLog.of(token_ids), len(token_ids))
    target = TargetLink(sequence, await workers.target(None))
    num_losses = 0
    try:
        while True:
            try:
                return await _ask(target, score_from)
            except WorkerLost as loss:
                num_losses += 1
                target = await another_target(sequence, workers, target, num_losses, loss)
    finally:
        target.close()


async def _ask(target: TargetLink, score_from: int) -> list[TokenLogprobs]:
    scores: list[TokenLogprobs] = []
    async with aclosing(target.verify(NO_DRAFTS, 1, score_from=score_from)) as results:
        async for result in results:
            num_known = result.start - score_from
            if num_known > len(scores):
                raise WorkerLost("log-probabilities got lost on the way")
            # Those that come twice change nothing.
            scores[num_known:] = result.logprobs
    return scores
