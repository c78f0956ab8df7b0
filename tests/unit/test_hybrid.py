"""Each part of a hybrid drafts as it would alone, and only where it is its turn."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from eagle_owner import HEAD, NUMBER, SAMPLED, TEXT, Owner, finish, loaded, owner_of
from hypothesis import given
from hypothesis import strategies as st
from lossless_runs import LAW, PROMPT

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.eagle import EagleDrafter
from draft_service.drafters.hybrid import SURE, HybridDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Drafter, Proposal, Proposer
from paceline.engine.eagle_head import EagleHead
from paceline.engine.sequences import SequenceTable
from paceline.engine.table_model import TableModel
from paceline.rounds import (
    AcceptanceRule,
    Drafts,
    ProposeRound,
    SequenceSettings,
    Support,
    WorkerLoad,
)
from paceline.token_log import TokenLog

SETTINGS = SequenceSettings(max_length=1000)
REJECTION = replace(SETTINGS, temperature=1.0, acceptance_rule=AcceptanceRule.REJECTION)
PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


class SureModel:
    """Says 70, 71, ... or what it is told to, and counts whom it was asked for."""

    def __init__(self, token_ids: list[int] | None = None, confidence: float = 0.6) -> None:
        self.table = SequenceTable()
        self.token_ids = list(range(70, 99)) if token_ids is None else token_ids
        self.confidence = confidence
        self.asked: list[list[str]] = []

    def load(self, num_waiting: int) -> WorkerLoad:
        return WorkerLoad(len(self.table), num_waiting, kv_used=5)

    def extend(self, proposals: list[Proposal]) -> None:
        self.asked.append([proposal.sequence.sequence_id for proposal in proposals])
        for proposal in proposals:
            proposal.num_steps += 1
            token_ids = self.token_ids[len(proposal.token_ids) :]
            if not token_ids:
                proposal.is_done = True
            elif proposal.sequence.settings.samples_drafts:
                proposal.add_sampled(token_ids[0], Support(token_ids[:1], (1.0,)))
            elif proposal.is_worth(self.confidence):
                proposal.add(token_ids[0], self.confidence)
                proposal.is_worth_a_step(self.confidence)


def hybrid(model: Drafter) -> Proposer:
    return Proposer(HybridDrafter(model, SuffixDrafter(model.table)), 16)


def drafts_of(
    proposer: Proposer,
    texts: dict[str, list[int]],
    num_wanted: int = 4,
    settings: SequenceSettings = SETTINGS,
    **least: float,
) -> dict[str, Drafts]:
    for id, text in texts.items():
        span = TokenLog.of(text).span(0)
        round = ProposeRound(id, 1, span, num_wanted, settings, **least)  # type: ignore[arg-type]
        assert proposer.accept(round) is None
    return {id: result.drafts for id, result in finish(proposer).items()}


def token_ids(proposer: Proposer, text: list[int], *rest: object) -> list[int]:
    return list(drafts_of(proposer, {"a": text}, *rest)["a"].token_ids)  # type: ignore[arg-type]


def test_a_sure_match_is_copied_and_the_model_is_not_asked() -> None:
    model = SureModel()
    assert token_ids(hybrid(model), [1, 2, 3, 4, 5] * 3, 4) == [1, 2, 3, 4]
    assert model.asked == []


def test_without_a_match_the_model_drafts() -> None:
    model = SureModel()
    assert token_ids(hybrid(model), [1, 2, 3, 4], 3) == [70, 71, 72]
    assert len(model.asked) == 3


def test_a_match_that_is_not_sure_leaves_it_to_the_model() -> None:
    assert token_ids(hybrid(SureModel()), [1, 2, 3, 1], 2) == [70, 71]


def test_what_the_model_says_can_lead_to_a_match() -> None:
    model = SureModel([2, 3, 4, 50, 51])
    assert token_ids(hybrid(model), [1, 2, 3, 4, 5, 6, 9, 1], 6) == [2, 3, 4, 5, 6, 9]
    assert len(model.asked) == 1


def test_behind_the_last_step_that_pays_a_match_is_still_copied() -> None:
    text = {"a": [1, 2, 3, 4, 5, 6, 9, 1]}
    model = SureModel([2, 70, 71])
    drafts = drafts_of(hybrid(model), text, 6, min_step_confidence=0.99)["a"]
    assert list(drafts.token_ids) == [2, 3, 4, 5, 6, 9]
    assert len(model.asked) == 1
    stopped = replace(SETTINGS, stop_token_ids=(2,))
    drafts = drafts_of(hybrid(SureModel([2])), text, 6, stopped, min_step_confidence=0.99)["a"]
    assert list(drafts.token_ids) == [2]


def test_where_the_model_says_nothing_a_weak_match_is_taken() -> None:
    assert token_ids(hybrid(SureModel([])), [1, 2, 3, 1], 2) == [2, 3]
    assert token_ids(hybrid(SureModel([70])), [1, 2, 70, 5, 1], 3) == [70, 5, 1]


def test_neither_says_what_is_too_unlikely() -> None:
    proposer = hybrid(SureModel(confidence=0.6))
    drafts = drafts_of(proposer, {"a": [1, 2, 3, 1]}, 9, min_confidence=0.3)["a"]
    assert list(drafts.token_ids) == [70, 71]
    assert list(drafts.confidences) == [0.6, 0.6]


def test_a_copy_goes_on_where_a_step_would_not_pay() -> None:
    match = {"a": [1, 2, 3, 4, 5] * 2}
    whole = drafts_of(hybrid(SureModel()), match, 6)["a"]
    assert prod(whole.confidences) < 0.9
    assert drafts_of(hybrid(SureModel()), match, 6, min_step_confidence=0.9)["a"] == whole


def test_in_one_batch_the_model_runs_for_those_alone_that_need_it() -> None:
    texts = {"copy": [1, 2, 3, 4, 5] * 3, "model": [1, 2, 3], "both": [6, 70, 71, 72, 6]}
    model = SureModel()
    together = drafts_of(hybrid(model), texts)
    assert model.asked[0] == ["model", "both"]
    assert all("copy" not in ids for ids in model.asked)
    for id, text in texts.items():
        assert together[id] == drafts_of(hybrid(SureModel()), {id: text})[id]


@given(PROMPTS, st.integers(1, 6))
def test_with_nothing_to_say_the_model_leaves_all_to_the_matches(
    text: list[int], num_wanted: int
) -> None:
    alone = Proposer(SuffixDrafter(), 16)
    expected = drafts_of(alone, {"a": text}, num_wanted)["a"]
    assert drafts_of(hybrid(SureModel([])), {"a": text}, num_wanted)["a"] == expected


@given(st.integers(1, len(PROMPT)), st.integers(1, 6))
def test_a_sampled_proposal_takes_as_many_steps_whatever_it_says(
    length: int, num_wanted: int
) -> None:
    """Copying behind a sampled token would bring some tokens sooner than others."""
    text = PROMPT[:length]
    model = SureModel(text[-1:] * 6)
    drafts = drafts_of(hybrid(model), {"a": text}, num_wanted, REJECTION)["a"]
    if model.asked:
        assert len(model.asked) == num_wanted
        assert len(drafts.supports) == num_wanted
    else:
        assert drafts.supports == ()


@given(st.integers(1, len(PROMPT)), st.sampled_from([0.0, 1.0]), st.integers(0, 99))
def test_with_the_targets_own_model_the_head_of_every_draft_is_right_or_copied(
    length: int, temperature: float, seed: int
) -> None:
    settings = replace(SETTINGS, temperature=temperature, seed=seed)
    text = PROMPT[:length]
    alone = drafts_of(Proposer(ModelDrafter(TableModel(LAW)), 16), {"a": text}, 4, settings)["a"]
    both = drafts_of(hybrid(ModelDrafter(TableModel(LAW))), {"a": text}, 4, settings)["a"]
    copied = drafts_of(Proposer(SuffixDrafter(), 16), {"a": text}, 4, settings)["a"]
    num_equal = next(
        (
            i
            for i, pair in enumerate(zip(alone.token_ids, both.token_ids, strict=False))
            if pair[0] != pair[1]
        ),
        4,
    )
    if num_equal == 0:
        assert both.token_ids == copied.token_ids[: len(both.token_ids)]
        assert copied.confidences[0] >= SURE


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    return loaded(HEAD, tmp_path_factory.mktemp("head"))


def hybrid_owner(head: EagleHead) -> Owner:
    eagle = EagleDrafter(head)
    drafter = HybridDrafter(eagle, SuffixDrafter(eagle.table))
    return Owner(Proposer(drafter, 16, head.feature_size), feature_size=head.feature_size)


def test_a_head_reads_what_was_copied_meanwhile(head: EagleHead) -> None:
    looped = [*TEXT[:20], *[7, 8, 9, 10, 11] * 4]
    owner = hybrid_owner(head)
    owner.drafts(looped[:30], (0, 29))
    num_read = owner.proposer.load.kv_used
    for length in range(32, 40, 2):
        copied = owner.drafts(looped[:length], (length - 3, length - 1), start=length - 2)
        assert list(copied.token_ids) == looped[length - 10 : length - 10 + NUMBER]
    assert owner.proposer.load.kv_used == num_read, "the head has not been asked"
    text = [*looped[:38], 13, 14, 17]
    drafts = owner.drafts(text, (37, 40), start=38)
    assert owner.proposer.load.kv_used >= len(text) - 1
    alone = owner_of(head).drafts(text, (0, 40))
    assert drafts.token_ids[0] == alone.token_ids[0]
    assert drafts.confidences[0] == alone.confidences[0]


def test_without_features_there_are_matches_still(head: EagleHead) -> None:
    owner = hybrid_owner(head)
    assert list(owner.drafts([1, 2, 3, 1], None).token_ids) == [2, 3, 1, 2]


def test_a_sampled_draft_of_a_head_brings_its_laws(head: EagleHead) -> None:
    drafts = hybrid_owner(head).drafts(TEXT[:12], (0, 11), settings=SAMPLED)
    expected = owner_of(head).drafts(TEXT[:12], (0, 11), settings=SAMPLED)
    assert np.array_equal(drafts.token_ids, expected.token_ids)
    assert drafts.supports == expected.supports


def test_the_load_is_that_of_the_model(tmp_path: Path) -> None:
    model = SureModel()
    assert HybridDrafter(model, SuffixDrafter(model.table)).load(2) == model.load(2)
