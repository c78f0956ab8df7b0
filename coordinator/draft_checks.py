"""What a draft worker proposed, before the target sees it: is it what was asked for?

No proposal can change a text. But the target refuses a round whose drafts are no tree, and what a
drafter does wrong should be known. What is left out depends on numbers alone, never on what the
tokens are: the rules `rejection` and `block` would lean towards the others. Pure.
"""

from dataclasses import replace

from coordinator.sequence import Sequence
from paceline.rounds import NO_DRAFTS, Drafts, ProposeResult, VerifyResult
from paceline.token_tree import rule_fault, tree_fault

UNCHECKED = "unchecked"
"""The target could not read the laws of the drafts, and checked none of them."""


def checked_drafts(
    result: ProposeResult, num_wanted: int, sequence: Sequence
) -> tuple[Drafts, str]:
    """The drafts that go to the target, and in a word or two what is wrong with them."""
    drafts = result.drafts
    if tree_fault(drafts) or rule_fault(drafts, sequence.settings):
        return NO_DRAFTS, "malformed"
    if len(drafts.token_ids) > num_wanted:
        first = drafts.head(num_wanted)
        return replace(first, confidences=drafts.confidences[:num_wanted]), "too_many"
    if sequence.vocab_size and any(id >= sequence.vocab_size for id in drafts.token_ids):
        # They stay: the target rejects them as it does any wrong token.
        return drafts, "unknown_token"
    return drafts, result.fault.name.lower() if result.fault else ""


def went_unchecked(drafts: Drafts, result: VerifyResult, sequence: Sequence) -> bool:
    """Whether the target checked no draft although there was room; before its tokens are there."""
    has_room = sequence.num_left > 1
    return bool(drafts.supports) and has_room and result.num_draft_tokens == 0
