"""Whatever is drafted and whatever goes wrong, the text is the table model's own.

The decode loop, the links, the round clients, a verifier and proposers are the real ones; between
them answers are late, lost, doubled or out of date, streams break, workers forget everything and
passes fail (`fakes`). Time is virtual, so a minute without an answer costs nothing.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import pytest
from fakes import Fault, FaultyConnection, FaultyDevice, FixedWorkers, ScriptedDrafter
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from lossless_runs import (
    LAW,
    PROMPT,
    SEEDED,
    VOCAB_SIZE,
    NoProgress,
    answer,
    draft,
    new_sequence,
    target,
)
from plain_text import next_token, plain_text
from trees import merged, trees
from virtual_time import run_virtually

from coordinator.sequence import _Link
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Proposal
from paceline.engine.kv_cache import KVCache, KVSequence
from paceline.engine.table_model import TableLaw, TableModel
from paceline.errors import Unavailable
from paceline.rounds import Drafts, SequenceSettings, TokenSpan
from paceline.token_log import TokenLog
from paceline.token_tree import tree_fault

Script = Callable[[Proposal], Drafts]

FAULTS = st.sampled_from([*Fault, Fault.NONE, Fault.NONE])
LAWS = st.builds(TableLaw, st.integers(0, 999), st.just(VOCAB_SIZE))
PROMPTS = st.one_of(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    st.integers(1, len(PROMPT)).map(lambda length: PROMPT[:length]),
)
TIMEOUTS = st.sampled_from([0.005, 0.05, 1.0])
PENALTIES = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "presence_penalty": st.sampled_from([0.0, 1.5, -1.0]),
            "frequency_penalty": st.sampled_from([0.0, 0.7, -0.3]),
            "repetition_penalty": st.sampled_from([1.0, 1.5, 0.8]),
        }
    ),
)
PLANS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), TIMEOUTS), min_size=1, max_size=5)


@st.composite
def sequence_settings(draw: st.DrawFn, num_prompt: int) -> SequenceSettings:
    """Greedy and seeded, with and without bias, penalties, stops, a minimum and the end."""
    ignores_end = draw(st.booleans())
    stops = draw(st.sampled_from([(), (2,), (2, 7)]))
    num_new = draw(st.integers(1, 20))
    return SequenceSettings(
        max_length=num_prompt + num_new,
        temperature=draw(st.sampled_from([0.0, 0.6, 1.0])),
        top_k=draw(st.sampled_from([0, 5])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        seed=draw(st.integers(0, 2**64 - 1)),
        logit_bias=draw(st.sampled_from([(), ((3, 4.0),), ((1, -100.0), (5, 2.0))])),
        stop_token_ids=stops if ignores_end else (*stops, LAW.eos_token_id),
        min_length=num_prompt + draw(st.sampled_from([0, 0, min(3, num_new)])),
        prompt_length=num_prompt,
        **draw(PENALTIES),
    )


@st.composite
def scripts(draw: st.DrawFn, law: TableLaw) -> list[Script]:
    """Drafts: some right ones, then anything, or beside anything in a tree, or in what is no tree;
    none; or a drafter that fails."""

    def entry(num_right: int, others: Drafts, fails: bool) -> Script:
        def propose(proposal: Proposal) -> Drafts:
            if fails:
                raise ZeroDivisionError("injected")
            known = [*proposal.sequence.log.token_ids]
            for _ in range(num_right):
                known.append(next_token(law, known, proposal.sequence.settings))
            right = known[len(proposal.sequence.log) :]
            if tree_fault(others):
                return others
            if others.parents:
                return merged(Drafts(right[:1]), others, Drafts(right))
            return Drafts([*right, *others.token_ids])

        return propose

    token_ids = st.one_of(st.integers(0, VOCAB_SIZE + 1), st.just(2**32 - 1))
    chains = st.lists(token_ids, max_size=9)
    entries = st.builds(
        entry,
        st.integers(0, 5),
        st.one_of(
            st.builds(Drafts, chains),
            trees(token_ids, 9),
            st.builds(Drafts, chains, st.lists(st.integers(-2, 9), max_size=9)),
        ),
        st.sampled_from([False, False, False, True]),
    )
    return draw(st.lists(entries, max_size=8))


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableLaw, list[int], SequenceSettings]:
    law, prompt = draw(LAWS), draw(PROMPTS)
    return law, prompt, draw(sequence_settings(len(prompt)))


@given(st.data(), cases(), PLANS)
@examples(max_examples=100)
def test_faults_and_drafts_of_all_kinds_never_change_the_text(
    data: st.DataObject,
    case: tuple[TableLaw, list[int], SequenceSettings],
    plans: list[tuple[int, int, float]],
) -> None:
    law, prompt, settings = case
    # No more faults than targets may be lost in a row, or the answer would rightly be given up.
    target_faults = data.draw(st.lists(st.lists(FAULTS, max_size=3), min_size=1, max_size=2))
    draft_faults = data.draw(st.lists(FAULTS, max_size=8))
    script = data.draw(scripts(law))

    def hybrid() -> HybridDrafter:
        model = ModelDrafter(TableModel(replace(law, disagreement=0.3)))
        return HybridDrafter(model, SuffixDrafter(model.table))

    async def run() -> list[int]:
        targets = [FaultyConnection(target(law, faults)) for faults in target_faults]
        drafts = [
            draft(lambda: ScriptedDrafter(script), draft_faults),
            draft(lambda: ModelDrafter(TableModel(replace(law, disagreement=0.3)))),
            draft(SuffixDrafter),
            draft(hybrid),
        ]
        workers = FixedWorkers(targets, [FaultyConnection(device) for device in drafts])
        return await answer(new_sequence(settings, prompt), workers, plans)

    assert run_virtually(run()) == plain_text(law, prompt, settings)


@given(st.lists(FAULTS, max_size=6), st.data(), st.integers(7, 12))
@examples(max_examples=25)
def test_many_sequences_in_a_pool_far_too_small_for_them_say_the_same(
    faults: list[Fault], data: st.DataObject, num_cells: int
) -> None:
    prompts = [PROMPT[start : start + 12] for start in (0, 0, 3, 7, 9)]
    settings = [data.draw(sequence_settings(12)) for _ in prompts]
    settings = [replace(s, max_length=min(s.max_length, 4 * num_cells)) for s in settings]

    async def run() -> list[list[int]]:
        device = target(LAW, faults, num_cells=num_cells)
        drafter = draft(lambda: ModelDrafter(TableModel(LAW, num_cells=8, cell_size=4)))
        workers = [
            FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)]) for _ in prompts
        ]
        return await asyncio.gather(
            *(
                answer(new_sequence(s, prompt), placed)
                for s, prompt, placed in zip(settings, prompts, workers, strict=True)
            )
        )

    expected = [plain_text(LAW, p, s) for p, s in zip(prompts, settings, strict=True)]
    assert run_virtually(run()) == expected


def said_by_two_callers(
    prompts: Items[list[int]], settings: SequenceSettings, delay_s: float
) -> list[list[int]]:
    """Two callers that use one sequence id at the same time, each on a stream of its own."""

    async def run() -> list[list[int]]:
        device = target(LAW)
        drafter = draft(lambda: ModelDrafter(TableModel(LAW)))
        sequences = [new_sequence(settings, prompt) for prompt in prompts]
        sequences[1].sequence_id = sequences[0].sequence_id
        workers = [
            FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)]) for _ in prompts
        ]
        first = asyncio.create_task(answer(sequences[0], workers[0]))
        await asyncio.sleep(delay_s)
        return [await answer(sequences[1], workers[1]), await first]

    return run_virtually(run())


def is_right_after_faults(*faults: Fault) -> bool:
    async def run() -> list[int]:
        drafter = draft(lambda: ModelDrafter(TableModel(replace(LAW, disagreement=0.4))))
        workers = FixedWorkers([FaultyConnection(target(LAW, faults))], [FaultyConnection(drafter)])
        return await answer(new_sequence(SEEDED), workers)

    try:
        return run_virtually(run()) == plain_text(LAW, PROMPT, SEEDED)
    except (NoProgress, Unavailable):
        return False


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("other_prompt", [PROMPT, PROMPT[::-1]], ids=["same", "another"])
def test_two_callers_with_one_sequence_id_both_get_their_own_text(
    temperature: float, other_prompt: list[int]
) -> None:
    settings = replace(SEEDED, temperature=temperature)
    prompts = [PROMPT, other_prompt]
    for delay_ms in range(0, 80, 10):
        said = said_by_two_callers(prompts, settings, delay_ms / 1000)
        assert said == [plain_text(LAW, prompt, settings) for prompt in reversed(prompts)]


@pytest.mark.parametrize("draft_fault", [Fault.NONE, Fault.LATE])
def test_without_losses_nothing_is_ever_sent_twice(draft_fault: Fault) -> None:
    async def run() -> tuple[FaultyDevice, FaultyDevice]:
        device = target(LAW)
        law = replace(LAW, disagreement=0.4)
        drafter = draft(lambda: ModelDrafter(TableModel(law)), [draft_fault])
        workers = FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)])
        await answer(new_sequence(SEEDED), workers)
        return device, drafter

    device, drafter = run_virtually(run())
    assert device.num_resends == drafter.num_resends == 0
    assert device.num_rounds > 3 < drafter.num_rounds


def sync_without_check(log: TokenLog, span: TokenSpan) -> bool:
    if span.start > len(log):
        return False
    log.token_ids[span.start :] = type(log.token_ids)("I", span.token_ids)
    return True


def truncate_one_too_few(cache: KVCache[object], kv: KVSequence[object], num_tokens: int) -> None:
    kv.num_tokens = min(kv.num_tokens, num_tokens + 1)


def sync_one_too_far(log: TokenLog, span: TokenSpan) -> bool:
    if span.start > len(log) or log.prefix_hash(span.start) != span.prefix_hash:
        return False
    del log.token_ids[span.start + 1 :]
    log.token_ids.extend(span.token_ids)
    return True


def must_resend_one_too_high(link: _Link, span: TokenSpan, held: int | None) -> bool:
    link._known = span.start + len(span.token_ids) + 1 if held is None else held
    return held is not None


def test_a_hash_that_is_not_checked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenLog, "sync", sync_without_check)
    with pytest.raises(AssertionError):
        test_two_callers_with_one_sequence_id_both_get_their_own_text(1.0, PROMPT[::-1])


def test_a_rollback_of_the_kv_that_keeps_one_token_too_many_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_right_after_faults()
    monkeypatch.setattr(KVCache, "truncate", truncate_one_too_few)
    assert not is_right_after_faults()


def test_a_span_that_is_placed_one_token_too_far_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = (Fault.NONE, Fault.LOST)
    assert is_right_after_faults(*faults)
    monkeypatch.setattr(TokenLog, "sync", sync_one_too_far)
    assert not is_right_after_faults(*faults)


def test_a_link_that_believes_the_worker_holds_one_token_more_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Link, "_must_resend", must_resend_one_too_high)
    with pytest.raises(AssertionError):
        test_without_losses_nothing_is_ever_sent_twice(Fault.NONE)
