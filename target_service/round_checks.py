"""What a round must be for the target to take it, and which of its drafts are checked.

Pure: no model, no network, no state.
"""

from collections.abc import Iterable, Sequence

from paceline.engine.draws import is_support_of
from paceline.engine.settings_checks import unusable
from paceline.rounds import (
    NO_DRAFTS,
    Drafts,
    RoundError,
    RoundErrorReason,
    SequenceSettings,
    Support,
    VerifyRound,
)
from paceline.token_tree import depth_first, depths, is_chain, pruned, rule_fault, tree_fault


def refusal(round: VerifyRound, vocab_size: int, max_length: int) -> RoundError | None:
    """What is wrong with a round whatever the worker holds."""
    unknown = _first_unknown(round.span.token_ids, vocab_size)
    if unknown is not None:
        message = (
            f"span.token_ids[{unknown}]: {round.span.token_ids[unknown]} is not a token; "
            f"expected ids below {vocab_size}."
        )
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, message)
    if fault := tree_fault(round.drafts):
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, fault)
    if round.settings is not None and round.settings.max_length > max_length:
        message = (
            f"settings.max_length: {round.settings.max_length} tokens do not fit; this worker "
            f"holds sequences of up to {max_length}."
        )
        return RoundError(RoundErrorReason.TOO_LONG, message)
    return unusable(round.settings) if round.settings is not None else None


def misplaced(
    round: VerifyRound, num_tokens: int, settings: SequenceSettings, has_grammars: bool
) -> RoundError | None:
    """What is wrong with a round for a sequence that has so many tokens once its span is placed."""
    if round.score_from is not None:
        if 0 < round.score_from < num_tokens:
            return None
        message = (
            f"score_from: {round.score_from} of a sequence of {num_tokens} tokens; expected at "
            "least 1 and fewer than that."
        )
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, message)
    if not 0 < num_tokens < settings.max_length:
        message = (
            f"span: the sequence has {num_tokens} tokens; expected at least 1 and fewer "
            f"than max_length ({settings.max_length})."
        )
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, message)
    if fault := rule_fault(round.drafts, settings):
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, fault)
    if settings.grammar and not has_grammars:
        message = "settings.grammar: is set; this worker has no tokenizer for it."
        return RoundError(RoundErrorReason.INVALID_ARGUMENT, message)
    return None


def usable_drafts(
    drafts: Drafts, max_drafts: int, max_depth: int, vocab_size: int
) -> tuple[Drafts, Sequence[int]]:
    """The drafts to check, and those of them that the model can run; a tree comes depth-first.

    Behind one that the model does not know there is nothing to check; in a chain it is rejected
    itself, not left out. What else is left out depends on numbers alone, never on the tokens:
    `rejection` and `block` would lean towards the others. Drafts whose law cannot be told are none
    at all.
    """
    if not is_chain(drafts.parents):
        tree = _usable_tree(drafts, max_drafts, max_depth, vocab_size)
        return tree, tree.token_ids
    num_drafts = max(min(max_drafts, max_depth), 0)
    token_ids, supports = drafts.token_ids[:num_drafts], drafts.supports[:num_drafts]
    if drafts.supports and not _are_supports_of(supports, token_ids):
        return NO_DRAFTS, ()
    unknown = _first_unknown(token_ids, vocab_size)
    if unknown is None:
        return Drafts(token_ids, supports=supports), token_ids
    checked = Drafts(token_ids[: unknown + 1], supports=supports[: unknown + 1])
    return checked, token_ids[:unknown]


def _usable_tree(drafts: Drafts, max_drafts: int, max_depth: int, vocab_size: int) -> Drafts:
    depth = depths(drafts.parents)

    def is_usable(index: int) -> bool:
        is_known = 0 <= drafts.token_ids[index] < vocab_size
        return index < max_drafts and depth[index] <= max_depth and is_known

    return depth_first(pruned(drafts, is_usable))


def _are_supports_of(supports: Sequence[Support], token_ids: Sequence[int]) -> bool:
    return len(supports) == len(token_ids) and all(map(is_support_of, supports, token_ids))


def _first_unknown(token_ids: Iterable[int], vocab_size: int) -> int | None:
    return next((i for i, id in enumerate(token_ids) if not 0 <= id < vocab_size), None)
