"""Which drafts become text, and what the target says where they end: the coupled rule.

The target chooses its own token at every position, with noise that depends on the seed and the
position alone (`paceline.engine.sampling`), and goes on for as long as the drafts say the same. So
the text is what the target would have said without drafts, token for token; drafts only decide how
many rows of one pass are of use (arXiv 2408.07978). Greedy is the same rule without noise.

- *accepted*: a draft that equals the target's own choice at its position;
- *recovered token*: the target's choice where the first draft differs from it;
- *bonus token*: the target's choice behind the last draft when all were accepted;
- *committed tokens*: the accepted drafts, then the recovered or the bonus token.

Pure: no model, no network, no state. Invariant: every committed token was chosen from the target's
own row behind exactly the tokens before it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.model import Logits
from paceline.engine.sampling import choose_token
from paceline.rounds import SequenceSettings


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one round commits."""

    num_accepted_tokens: int
    """How many drafts were accepted: as many of the first `token_ids` are theirs."""
    token_ids: Sequence[int]
    """The committed tokens, at least one. The last is recovered or bonus, except when an accepted
    draft ended the sequence: nothing is committed behind a stop token or the last place."""


def accept_drafts(
    logits: Logits,  # [1 + K, V], the rows behind the last committed token and behind each draft
    draft_token_ids: Sequence[int],  # K; ids that the target lacks are never accepted
    settings: SequenceSettings,
    context: "array[int]",  # the tokens of the sequence so far; not changed
) -> Acceptance:
    """Walk a chain of drafts behind the tokens of the sequence so far.

    The caller sees to it that those are fewer than `settings.max_length`. Rows behind the first
    rejection are never looked at. Each row is judged behind the drafts accepted before it, so
    penalties count what the text will hold. Raises what `choose_token` raises.
    """
    assert len(logits) == 1 + len(draft_token_ids), "one row behind each token"
    start = len(context)
    text = context[:]
    for draft_token_id, row in zip(draft_token_ids, logits, strict=False):
        token_id = choose_token(row, settings, len(text), text)
        text.append(token_id)
        if token_id != draft_token_id:
            return Acceptance(len(text) - start - 1, text[start:].tolist())
        if token_id in settings.stop_token_ids or len(text) == settings.max_length:
            return Acceptance(len(text) - start, text[start:].tolist())
    text.append(choose_token(logits[-1], settings, len(text), text))
    return Acceptance(len(draft_token_ids), text[start:].tolist())
