"""Which drafts become text, and what the target says where they end.

Three rules; at temperature 0 all are the first one.

- `coupled`: the target chooses its own token at every position, with noise that depends on the seed
  and the position alone (`paceline.engine.sampling`), and goes on for as long as the drafts say the
  same. So the text is what the target would have said without drafts, token for token; drafts only
  decide how many rows of one pass are of use (arXiv 2408.07978). Where several drafts stand in one
  place, in a tree, the one that says the target's choice is accepted.
- `rejection`: each draft is accepted with the probability min(1, p/q), p and q being its share
  under the target's and the draft's law; where one is not, the target's token comes from the
  residual max(p - q, 0) (Leviathan et al., arXiv 2211.17192).
- `block`: how many drafts are accepted is decided for all of them together, never fewer on average
  (Sun et al., arXiv 2403.10444, algorithm 2).

The last two keep the law of the text, not the text: it depends on the drafts.

- *accepted*: a draft that becomes text;
- *recovered token*: the target's token where the first draft was not accepted;
- *bonus token*: the target's token behind the last draft when all were accepted;
- *committed tokens*: the accepted drafts, then the recovered or the bonus token.

Pure: no model, no network, no state.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.engine.device_rows import chosen_token
from paceline.engine.draws import Draws, Law, draft_law
from paceline.engine.grammar import GrammarState
from paceline.engine.model import Rows
from paceline.engine.sampling import choose_token, token_law
from paceline.rounds import AcceptanceRule, Drafts, SequenceSettings, Support
from paceline.token_tree import children


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one round commits."""

    num_accepted_tokens: int
    """How many drafts were accepted: as many of the first `token_ids` are theirs."""
    token_ids: Sequence[int]
    """The committed tokens, at least one. The last is recovered or bonus, except when an accepted
    draft ended the sequence: nothing is committed behind a stop token or the last place."""


class Chance(Protocol):
    """Where the decisions of a round come from: `Draws`, or all of them in turn in a proof."""

    def happens(self, position: int, probability: float, /) -> bool:
        """True with this probability."""

    def pick(self, position: int, weights: Law, /) -> int:
        """A token, each with the share of its weight."""


def accept_drafts(
    logits: Rows,  # [1 + K, V], the rows behind the last committed token and behind each draft
    drafts: Drafts,  # one id that the target lacks may follow the K of a chain; never accepted
    settings: SequenceSettings,
    context: "array[int]",  # the tokens of the sequence so far; not changed
    grammar: GrammarState | None = None,
) -> Acceptance:
    """Decide about a chain of drafts behind `context`, or about a tree by the coupled rule.

    The caller sees to it that `context` is shorter than `settings.max_length`. Each row is judged
    behind the drafts before it, so penalties count what the text would hold, and the grammar allows
    what may stand there. Rows behind the first rejection are never looked at, except by `block`.
    Raises what `choose_token` and `GrammarState.allowed` raise.
    """
    assert 1 + len(drafts.token_ids) - len(logits) in (0, 1), "one row behind each known token"
    rule = settings.acceptance_rule
    if settings.temperature == 0.0 or rule is AcceptanceRule.COUPLED:
        return coupled(logits, drafts, settings, context, grammar)
    assert not drafts.parents, "only the coupled rule takes trees"
    start = len(context)
    room = settings.max_length - start
    draft_token_ids = useful_drafts(drafts.token_ids, settings.stop_token_ids, room)
    has_bonus = len(draft_token_ids) < room and not (
        draft_token_ids and draft_token_ids[-1] in settings.stop_token_ids
    )
    tokens = context + array("I", draft_token_ids)

    def law(index: int) -> Law:
        before = tokens[: start + index]
        allowed = grammar.allowed(before) if grammar else None
        return token_law(logits[index], settings, len(before), before, allowed)

    if grammar:
        # The first that the grammar bans is rejected; there is nothing to say behind it.
        draft_token_ids = draft_token_ids[: grammar.reach(tokens) - start + 1]
    supports: Sequence[Support | None] = drafts.supports or [None] * len(draft_token_ids)
    proposed = [
        Proposed(token_id, *draft_law(support, token_id, logits.shape[-1]))
        for token_id, support in zip(draft_token_ids, supports, strict=False)
    ]
    decide = rejection if rule is AcceptanceRule.REJECTION else block
    return decide(law, proposed, Draws(settings, start), start, has_bonus)


def useful_drafts(
    token_ids: Sequence[int], stop_token_ids: Collection[int], room: int
) -> Sequence[int]:
    """The drafts up to the first that would end the sequence."""
    stops = (index for index, id in enumerate(token_ids) if id in stop_token_ids)
    return token_ids[: min(next(stops, len(token_ids)) + 1, room)]


def coupled(
    logits: Rows,
    drafts: Drafts,
    settings: SequenceSettings,
    context: "array[int]",
    grammar: GrammarState | None,
) -> Acceptance:
    """The target's own choices, for as long as a draft says each of them behind the one before.

    Where the model has chosen by a row already, the row is not looked at.
    """
    following = children(drafts)
    tokens = context[:]
    last_draft = -1
    num_accepted = 0
    while True:
        chosen = chosen_token(logits, 1 + last_draft)
        if chosen is not None:
            token_id = chosen.token_id
        else:
            allowed = grammar.allowed(tokens) if grammar else None
            token_id = choose_token(logits[1 + last_draft], settings, len(tokens), tokens, allowed)
        tokens.append(token_id)
        draft = following.get((last_draft, token_id))
        if draft is not None:
            num_accepted, last_draft = num_accepted + 1, draft
        has_ended = token_id in settings.stop_token_ids or len(tokens) >= settings.max_length
        if draft is None or has_ended:
            return Acceptance(num_accepted, list(tokens[len(context) :]))


@dataclass(frozen=True, slots=True)
class Proposed:
    """A sampled draft."""

    token_id: int
    law: Law
    """What it was sampled from."""
    probability: float
    """Its own in that law; above 0."""

    def ratio(self, target_law: Law) -> float:
        """How much more likely the target says it; 0 for a token that the target lacks."""
        if self.token_id >= len(target_law):
            return 0.0
        share: float = target_law[self.token_id] / self.probability
        return share


TargetLaw = Callable[[int], Law]
"""The target's law behind i drafts."""


def rejection(
    target_law: TargetLaw,
    proposed: Sequence[Proposed],
    chance: Chance,
    start: int,
    has_bonus: bool,
) -> Acceptance:
    """Each draft by itself."""
    token_ids: list[int] = []
    for index, draft in enumerate(proposed):
        law = target_law(index)
        if not chance.happens(start + index, draft.ratio(law)):
            return Acceptance(index, [*token_ids, _recovered(1, law, draft, chance, start + index)])
        token_ids.append(draft.token_id)
    if has_bonus:
        token_ids.append(chance.pick(start + len(proposed), target_law(len(proposed))))
    return Acceptance(len(proposed), token_ids)


def block(
    target_law: TargetLaw,
    proposed: Sequence[Proposed],
    chance: Chance,
    start: int,
    has_bonus: bool,
) -> Acceptance:
    """The longest head of the drafts that is accepted as a whole."""
    laws = [target_law(index) for index in range(len(proposed))]
    num_accepted = 0
    weight: float = 1
    accepted_weight = weight
    for index, draft in enumerate(proposed):
        weight = min(weight * draft.ratio(laws[index]), 1)
        probability = weight
        if index + 1 < len(proposed) and weight < 1:
            gain = _residual(weight, laws[index + 1], proposed[index + 1]).sum()
            probability = gain / (gain + 1 - weight)
        if chance.happens(start + index, probability):
            num_accepted, accepted_weight = index + 1, weight
    token_ids = [draft.token_id for draft in proposed[:num_accepted]]
    position = start + num_accepted
    if num_accepted < len(proposed):
        draft = proposed[num_accepted]
        token_ids.append(_recovered(accepted_weight, laws[num_accepted], draft, chance, position))
    elif has_bonus:
        token_ids.append(chance.pick(position, target_law(num_accepted)))
    return Acceptance(num_accepted, token_ids)


def _residual(weight: float, law: Law, draft: Proposed) -> Law:
    """What the target's law, weighted, has over the draft's."""
    return np.maximum(weight * law - draft.law, 0)


def _recovered(weight: float, law: Law, draft: Proposed, chance: Chance, position: int) -> int:
    residual = _residual(weight, law, draft)
    # Laws that differ by rounding alone may leave nothing; then they are the same law.
    return chance.pick(position, residual if residual.any() else law)
