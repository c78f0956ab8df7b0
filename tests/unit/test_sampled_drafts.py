"""Drafts for `rejection` and `block` on their way: sampled, told with their law, decided about."""

from dataclasses import replace

import numpy as np
import pytest
from sequence_owner import LAW, PROMPT, SEEDED, VOCAB_SIZE, Owner, new_verifier

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.proposer import Proposer
from paceline.engine.sampling import token_law
from paceline.engine.table_model import TableModel
from paceline.rounds import (
    NO_DRAFTS,
    AcceptanceRule,
    Drafts,
    ProposeRound,
    SequenceSettings,
    Support,
    VerifyResult,
    VerifyRound,
)
from paceline.token_log import TokenLog
from target_service.round_checks import usable_drafts

RULES = [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK]
SAMPLED = replace(SEEDED, acceptance_rule=AcceptanceRule.REJECTION, top_k=6)


def drafts_of(settings: SequenceSettings, number: int = 5, disagreement: float = 0.0) -> Drafts:
    """What a draft service proposes behind the prompt."""
    model = TableModel(replace(LAW, disagreement=disagreement))
    proposer = Proposer(ModelDrafter(model), 16)
    span = TokenLog.of(PROMPT).span(0)
    assert proposer.accept(ProposeRound("a", 1, span, number, settings)) is None
    while True:
        for result in proposer.step() or []:
            return result.drafts


def verified(settings: SequenceSettings, drafts: Drafts) -> VerifyResult:
    verifier = new_verifier()
    span = TokenLog.of(PROMPT).span(0)
    assert verifier.accept(VerifyRound("a", 1, span, drafts, 1, settings)) is None
    (result,) = verifier.step() or []
    return result


def test_each_draft_comes_with_the_law_that_its_model_says() -> None:
    drafts = drafts_of(SAMPLED)
    assert len(drafts.supports) == len(drafts.token_ids) == 5
    for index, support in enumerate(drafts.supports):
        context = [*PROMPT, *drafts.token_ids[:index]]
        logits = LAW.logits(np.asarray(context), 1)[0]
        law = token_law(logits, SAMPLED, len(context), context)
        told = dict(zip(support.token_ids, support.weights, strict=True))
        assert told == {int(id): np.float32(law[id]) for id in np.flatnonzero(law)}
        assert drafts.token_ids[index] in told
        assert len(told) == 6


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, *RULES])
def test_only_drafts_that_are_sampled_come_with_a_law(rule: AcceptanceRule) -> None:
    settings = replace(SAMPLED, acceptance_rule=rule)
    assert bool(drafts_of(settings).supports) == (rule is not AcceptanceRule.COUPLED)
    assert drafts_of(replace(settings, temperature=0.0)).supports == ()


def test_how_many_drafts_there_are_does_not_depend_on_a_stop_token_among_them() -> None:
    stop = drafts_of(SAMPLED).token_ids[1]
    settings = replace(SAMPLED, stop_token_ids=(stop,))
    assert len(drafts_of(settings).token_ids) == 5
    result = verified(settings, drafts_of(settings))
    assert stop not in result.token_ids[:-1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(5))
def test_the_targets_own_model_has_all_its_drafts_accepted(rule: AcceptanceRule, seed: int) -> None:
    settings = replace(SAMPLED, acceptance_rule=rule, seed=seed)
    result = verified(settings, drafts_of(settings))
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (5, 5)
    assert len(result.token_ids) == 6


@pytest.mark.parametrize("rule", RULES)
def test_a_round_that_is_repeated_says_the_same(rule: AcceptanceRule) -> None:
    decided = []
    for seed in range(12):
        settings = replace(SAMPLED, acceptance_rule=rule, seed=seed)
        drafts = drafts_of(settings, disagreement=0.5)
        assert drafts == drafts_of(settings, disagreement=0.5)
        first, second = verified(settings, drafts), verified(settings, drafts)
        assert first.token_ids == second.token_ids
        decided.append(first.num_accepted_tokens)
    assert len(set(decided)) > 1, "some are accepted and some are not"


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_the_target_lacks_is_rejected_with_its_law(rule: AcceptanceRule) -> None:
    settings = replace(SAMPLED, acceptance_rule=rule)
    (first,) = drafts_of(settings, 1).token_ids
    certain = Support((first,), (1.0,))
    # Whatever the other half of the law proposes would have been accepted, so it is left over.
    law = Support((VOCAB_SIZE + 3, first), (0.5, 0.5))
    result = verified(settings, Drafts((VOCAB_SIZE + 3, first), supports=(law, certain)))
    assert (result.num_draft_tokens, result.num_accepted_tokens) == (1, 0)
    assert len(result.token_ids) == 1


def test_what_is_trimmed_is_trimmed_with_its_law() -> None:
    supports = tuple(Support((id,), (1.0,)) for id in (1, 2, 3))
    drafts, known = usable_drafts(Drafts((1, 2, 3), supports=supports), 2, 9, VOCAB_SIZE)
    assert drafts == Drafts((1, 2), supports=supports[:2])
    assert known == (1, 2)


@pytest.mark.parametrize(
    "supports",
    [
        (Support((1,), (1.0,)),),
        (Support((1,), (1.0,)), Support((3,), (1.0,))),
        (Support((1,), (1.0,)), Support((2,), (float("nan"),))),
        (Support((1,), (1.0,)), Support((2, 3), (1.0,))),
        (Support((1,), (0.0,)), Support((2,), (1.0,))),
    ],
    ids=str,
)
def test_drafts_whose_law_cannot_be_told_are_none_and_the_round_goes_on(
    supports: tuple[Support, ...],
) -> None:
    drafts = Drafts((1, 2), supports=supports)
    assert usable_drafts(drafts, 9, 9, VOCAB_SIZE) == (NO_DRAFTS, ())
    result = verified(SAMPLED, drafts)
    assert (result.error, result.num_draft_tokens, len(result.token_ids)) == (None, 0, 1)


@pytest.mark.parametrize("rule", RULES)
def test_at_temperature_0_all_rules_say_the_same(rule: AcceptanceRule) -> None:
    owner = Owner(new_verifier(), settings=replace(SAMPLED, temperature=0.0, acceptance_rule=rule))
    owner.ask([*owner.expected[:2], VOCAB_SIZE])
    owner.ask(owner.expected[3:5], start=len(owner.log))
    assert owner.said == owner.expected[:6]
