"""The drafter `eagle` says what the paper's forward pass says, whatever reaches it and when."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from eagle_heads import HIDDEN, random_head
from eagle_owner import (
    DRAFT_VOCAB_SIZE,
    HEAD,
    NUMBER,
    SAMPLED,
    SEEDED,
    TEXT,
    VOCAB_SIZE,
    Owner,
    finish,
    loaded,
    owner_of,
    proposer_of,
    reference_drafts,
    rows_for,
)
from eagle_reference import reference_logits

from draft_service.drafters import eagle
from draft_service.drafters.eagle import EagleDrafter
from draft_service.proposer import Proposer
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_kv import HeadKV
from paceline.engine.head_rotary import RotaryAngles, rotary_embedding
from paceline.engine.sampling import token_law
from paceline.heads.eagle_config import read_head_config
from paceline.rounds import RoundErrorReason


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    return loaded(HEAD, tmp_path_factory.mktemp("head"))


@pytest.mark.parametrize("layout", ["published", "speculators"])
@pytest.mark.parametrize(
    ("draft_vocab_size", "settings"),
    [
        (DRAFT_VOCAB_SIZE, {}),
        (VOCAB_SIZE, {}),
        (DRAFT_VOCAB_SIZE, {"norm_before_residual": True, "attention_bias": True}),
        (DRAFT_VOCAB_SIZE, {"rope_theta": 500.0}),
    ],
    ids=["draft vocabulary", "whole vocabulary", "norm before residual and biases", "theta"],
)
def test_drafts_are_those_of_the_papers_forward_pass(
    tmp_path: Path, layout: str, draft_vocab_size: int, settings: dict[str, object]
) -> None:
    files = random_head(VOCAB_SIZE, draft_vocab_size, **settings)
    head = loaded(files, tmp_path, layout)
    for length, start in ((2, 0), (23, 0), (60, 47)):
        prompt = TEXT[:length]
        drafts = owner_of(head).drafts(prompt, (start, length - 1))
        assert list(drafts.token_ids) == reference_drafts(files, prompt, start)


def test_no_two_of_these_cases_have_the_same_drafts() -> None:
    """Or else the test above would prove less than it says."""
    heads = [
        random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE),
        random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE, norm_before_residual=True),
        random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE, attention_bias=True),
        random_head(VOCAB_SIZE, DRAFT_VOCAB_SIZE, rope_theta=500.0),
    ]
    said = [tuple(reference_drafts(head, TEXT[:23], number=6)) for head in heads]
    said.append(tuple(reference_drafts(heads[0], TEXT[:23], start=9, number=6)))
    assert len(set(said)) == len(said)


def test_a_draft_vocabulary_is_spread_over_the_targets(head: EagleHead) -> None:
    files, prompt = HEAD, TEXT[:12]
    expected = reference_logits(files, torch.from_numpy(rows_for(prompt)[:-1]), prompt[1:], 0)
    assert int(torch.isinf(expected).sum()) == VOCAB_SIZE - DRAFT_VOCAB_SIZE
    rows = eagle.HeadRows(HeadKV(0), prompt[1:], rows_for(prompt)[:-1], wants_logits=True)
    (logits,) = head.forward([rows])
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_head_in_fewer_bits_says_nearly_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    head, prompt = loaded(HEAD, tmp_path, dtype=dtype), TEXT[:12]
    kv = HeadKV(0)
    rows = eagle.HeadRows(kv, prompt[1:], rows_for(prompt)[:-1], wants_logits=True)
    logits = head.forward([rows])[0]
    expected = reference_logits(HEAD, torch.from_numpy(rows_for(prompt)[:-1]), prompt[1:], 0)
    assert logits is not None
    (logits,) = logits
    known = np.isfinite(logits)
    difference = np.abs(logits[known] - expected.numpy()[known]).max()
    assert 0.0 < difference < 0.1 * np.abs(logits[known]).max()
    assert head.forward([eagle.HeadRows(kv, [3], None, wants_logits=False)]) == [None]


def test_seeded_drafts_use_the_targets_noise_and_penalties(head: EagleHead) -> None:
    drafts = owner_of(head).drafts(TEXT[:23], (0, 22), settings=SEEDED)
    assert list(drafts.token_ids) == reference_drafts(HEAD, TEXT[:23], settings=SEEDED)
    assert drafts.supports == ()
    assert list(drafts.token_ids) != reference_drafts(HEAD, TEXT[:23])


def test_sampled_drafts_come_with_the_law_of_the_head(head: EagleHead) -> None:
    drafts = owner_of(head).drafts(TEXT[:23], (0, 22), settings=SAMPLED)
    assert len(drafts.supports) == len(drafts.token_ids) == NUMBER
    features = torch.from_numpy(rows_for(TEXT[:23])[:-1])
    for index, support in enumerate(drafts.supports):
        context = [*TEXT[:23], *drafts.token_ids[:index]]
        logits = reference_logits(HEAD, features, context[1:], 0).float().numpy()
        law = token_law(logits, SAMPLED, len(context), context)
        assert set(support.token_ids) == set(np.flatnonzero(law).tolist())
        np.testing.assert_allclose(support.weights, law[list(support.token_ids)], rtol=1e-3)


def test_rounds_go_on_from_the_rows_before_and_drop_those_of_drafts(head: EagleHead) -> None:
    owner = owner_of(head)
    drafts = list(owner.drafts(TEXT[:20], (0, 19)).token_ids)
    accepted = [*TEXT[:20], *drafts[:2], (drafts[2] + 1) % VOCAB_SIZE]
    said = owner.drafts(accepted, (19, 22), start=20)
    assert list(said.token_ids) == reference_drafts(HEAD, accepted)
    longer = [*accepted, 5]
    assert list(owner.drafts(longer, (22, 23), start=23).token_ids) == reference_drafts(
        HEAD, longer
    )


def test_a_round_that_is_sent_again_says_the_same(head: EagleHead) -> None:
    owner = owner_of(head)
    first = owner.drafts(TEXT[:20], (0, 19))
    assert owner.drafts(TEXT[:20], None, start=20) == first
    assert owner.drafts(TEXT[:20], (0, 19), start=0) == first


def test_a_proposal_that_was_given_up_leaves_no_trace(head: EagleHead) -> None:
    owner = owner_of(head)
    owner.accept(TEXT[:20], (0, 19))
    owner.proposer.step()
    owner.proposer.step()
    said = owner.drafts(TEXT[:24], (19, 23), start=20)
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:24])


def test_tokens_that_turn_out_others_take_their_rows_along(head: EagleHead) -> None:
    owner = owner_of(head)
    owner.drafts(TEXT[:20], (0, 19))
    other = [*TEXT[:12], 3, 1, 4, 1, 5]
    said = owner.drafts(other, (12, 16), start=12)
    assert list(said.token_ids) == reference_drafts(HEAD, other)


def test_rows_behind_a_gap_and_a_window_shorter_than_the_text_are_enough(head: EagleHead) -> None:
    owner = owner_of(head)
    owner.drafts(TEXT[:20], (9, 19))
    said = owner.drafts(TEXT[:50], (40, 49), start=20)
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:50], start=40)
    more = owner.drafts(TEXT[:50], (30, 49), start=50)
    assert list(more.token_ids) == reference_drafts(HEAD, TEXT[:50], start=30)


def test_a_new_draft_in_mid_sequence_drafts_from_the_rows_that_it_gets(head: EagleHead) -> None:
    said = owner_of(head).drafts(TEXT[:60], (52, 59))
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:60], start=52)


@pytest.mark.parametrize("rows", [None, (0, 18), (0, 10), (19, 25), (60, 70)])
def test_without_the_row_of_every_token_but_the_last_nothing_is_proposed(
    head: EagleHead, rows: tuple[int, int] | None
) -> None:
    owner = owner_of(head)
    data = rows_for(TEXT)[slice(*rows)] if rows else None
    assert owner.drafts(TEXT[:20], rows, data=data).token_ids == ()
    said = owner.drafts(TEXT[:20], (0, 19), start=0)
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:20])


def test_a_row_too_many_changes_nothing(head: EagleHead) -> None:
    said = owner_of(head).drafts(TEXT[:20], (0, 22), data=rows_for(TEXT)[:22])
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:20])


def test_positions_have_the_angles_of_the_familys_own_code_however_far_they_are(
    tmp_path: Path,
) -> None:
    config = read_head_config(str(HEAD.write(tmp_path)))
    angles, rotary = RotaryAngles(config, torch.device("cpu")), rotary_embedding(config)
    for positions in ([3], [5, 2, 5], [5000, 1], [1023, 1024]):
        expected = rotary(torch.empty(0), torch.tensor(positions)[None])
        for found, said in zip(angles.at(positions), expected, strict=True):
            assert torch.equal(found, said)


def test_features_that_are_no_numbers_are_a_gap(head: EagleHead) -> None:
    owner = owner_of(head)
    rows = rows_for(TEXT[:20])[:19]
    rows[18, 3] = np.nan
    assert owner.drafts(TEXT[:20], (0, 19), data=rows).token_ids == ()
    said = owner.drafts(TEXT[:24], (19, 23), start=20)
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:24], start=19)
    rows = rows_for(TEXT[:30])[23:29]
    rows[2] = np.inf
    said = owner.drafts(TEXT[:30], (23, 29), start=24, data=rows)
    assert list(said.token_ids) == reference_drafts(HEAD, TEXT[:30], start=26)


@pytest.mark.parametrize("name", ["fc", "lm_head", "mlp.gate_up_proj"])
def test_a_forward_pass_without_numbers_proposes_nothing_and_harms_nobody(
    tmp_path: Path, name: str
) -> None:
    head = loaded(HEAD, tmp_path)
    matrix = head._matrices[name]
    head._matrices[name] = lambda rows: matrix(rows) * torch.nan
    owner = owner_of(head)
    assert owner.drafts(TEXT[:20], (0, 19)).token_ids == ()
    assert owner.drafts(TEXT[:24], (19, 23), start=20).token_ids == ()


def test_tokens_that_the_head_does_not_know_end_the_proposal(head: EagleHead) -> None:
    prompt = [*TEXT[:10], VOCAB_SIZE, 3]
    data = rows_for(TEXT[:11])
    assert owner_of(head).drafts(prompt, (0, 11), data=data).token_ids == ()


def test_features_of_another_size_are_refused_by_name(head: EagleHead) -> None:
    answer = owner_of(head).accept(TEXT[:20], (0, 19), data=rows_for(TEXT[:19])[:, :5])
    assert answer is not None
    assert answer.error is not None
    assert answer.error.reason is RoundErrorReason.INVALID_ARGUMENT
    assert f"19 rows of {3 * HIDDEN} numbers" in answer.error.message


def test_all_sequences_of_a_step_run_together_and_do_not_mix(
    head: EagleHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "MAX_CHUNK", 8)
    proposer = proposer_of(head)
    texts = {"a": TEXT[:20], "b": TEXT[5:16], "c": TEXT[30:70]}
    for name, text in texts.items():
        assert Owner(proposer, name).accept(text, (0, len(text) - 1)) is None
    said = {name: list(r.drafts.token_ids) for name, r in finish(proposer).items()}
    assert said == {name: reference_drafts(HEAD, text) for name, text in texts.items()}


def test_a_closed_sequence_leaves_nothing_behind(head: EagleHead) -> None:
    drafter = EagleDrafter(head)
    owner = Owner(Proposer(drafter, 16, head.feature_size))
    owner.drafts(TEXT[:20], (0, 19))
    kv = weakref.ref(drafter.table._sequences["a"].drafter_state.kv)
    assert drafter.load(0).num_sequences == 1
    owner.proposer.close("a")
    gc.collect()
    assert kv() is None
    assert drafter.load(0).num_sequences == 0
    assert owner.drafts(TEXT[:20], (0, 19)).token_ids != ()


def test_room_is_taken_from_the_sequence_that_drafted_longest_ago(head: EagleHead) -> None:
    drafter = EagleDrafter(head, kv_capacity=50)
    proposer = Proposer(drafter, 16, head.feature_size)
    texts = {"a": TEXT[:18], "b": TEXT[20:36], "c": TEXT[40:58]}
    owners = {name: Owner(proposer, name) for name in texts}
    for name in ("a", "b", "a", "c"):
        text = texts[name]
        drafts = owners[name].drafts(text, (0, len(text) - 1))
        assert list(drafts.token_ids) == reference_drafts(HEAD, text)
    load = drafter.load(num_waiting=0)
    assert (load.kv_capacity, load.num_preemptions) == (50, 1)
    assert load.kv_used == (17 + NUMBER - 1) * 2, "b's rows are gone"
    drafts = owners["b"].drafts(texts["b"], None, start=16)
    assert list(drafts.token_ids) == reference_drafts(HEAD, texts["b"]), "computed again"
    for name in texts:
        proposer.close(name)
    assert drafter.load(num_waiting=0).kv_used == 0


def test_in_a_full_room_those_that_come_first_draft_and_the_others_go_without(
    head: EagleHead,
) -> None:
    proposer = Proposer(EagleDrafter(head, kv_capacity=30), 16, head.feature_size)
    for name in "ab":
        Owner(proposer, name).accept(TEXT[:18], (0, 17))
    results = finish(proposer)
    assert list(results["a"].drafts.token_ids) == reference_drafts(HEAD, TEXT[:18])
    assert results["b"].drafts.token_ids == ()
    assert Owner(proposer, "c").drafts(TEXT[:40], (0, 39)).token_ids == ()
