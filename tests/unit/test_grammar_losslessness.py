"""Under a grammar the text is what the table model alone says under it, whatever happens.

The same parts and faults as in `test_losslessness`. The model says twelve tokens, of which JSON can
be made; its drafts know of the grammar or do not, or say anything at all.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import jsonschema
import pytest
from fakes import Fault, FaultyConnection, FixedWorkers, ScriptedDrafter
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from lossless_runs import PROMPT, VOCAB_SIZE, answer, draft, new_sequence, target
from plain_text import next_token, plain_text
from trees import merged, trees
from virtual_time import run_virtually

from coordinator.sequence import RoundRefused
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Proposal
from paceline.engine.grammar import Grammars, GrammarState
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import AcceptanceRule, Drafts, SequenceSettings

TOKENS = [b"{", b"}", b'"', b":", b",", b"[", b"]", b"a", b"1", b'"a":', b"[]", b""]
END = VOCAB_SIZE - 1
QUOTE = 2
GRAMMARS = Grammars(TOKENS, VOCAB_SIZE)

OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": ["integer", "string"]}}},
    "required": ["a"],
    "additionalProperties": {"type": "integer"},
}
ARRAY = {"type": "array", "items": {"type": "object"}, "minItems": 1}
SCHEMAS = (OBJECT, ARRAY)

FAULTS = st.sampled_from([*Fault, Fault.NONE, Fault.NONE])
LAWS = st.builds(TableLaw, st.integers(0, 999), st.just(VOCAB_SIZE))
PLANS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 5), st.sampled_from([0.005, 1.0])),
    min_size=1,
    max_size=5,
)


@st.composite
def sequence_settings(draw: st.DrawFn, num_prompt: int) -> SequenceSettings:
    """Greedy and seeded; the end, a stop token that is text, a minimum, bias, penalties."""
    schema = draw(st.sampled_from(SCHEMAS))
    num_new = draw(st.integers(1, 30))
    return SequenceSettings(
        max_length=num_prompt + num_new,
        temperature=draw(st.sampled_from([0.0, 0.6, 1.0])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        seed=draw(st.integers(0, 2**64 - 1)),
        logit_bias=draw(st.sampled_from([(), ((4, 4.0), (0, -3.0))])),
        stop_token_ids=draw(st.sampled_from([(END,), (END,), (END, QUOTE)])),
        min_length=num_prompt + draw(st.sampled_from([0, 0, min(12, num_new)])),
        prompt_length=num_prompt,
        frequency_penalty=draw(st.sampled_from([0.0, 0.5])),
        grammar=f"start: %json {json.dumps(schema)}",
    )


@st.composite
def scripts(draw: st.DrawFn, law: TableLaw) -> list[Callable[[Proposal], Drafts]]:
    """Drafts: some right ones, then or beside what the grammar may or may not allow."""

    def entry(num_right: int, others: Drafts) -> Callable[[Proposal], Drafts]:
        def propose(proposal: Proposal) -> Drafts:
            settings = proposal.sequence.settings
            known = [*proposal.sequence.log.token_ids]
            for _ in range(num_right):
                if known[-1] not in settings.stop_token_ids:
                    known.append(next_token(law, known, settings, GRAMMARS))
            right = known[len(proposal.sequence.log) :]
            if others.parents:
                return merged(others, Drafts(right))
            return Drafts([*right, *others.token_ids])

        return propose

    token_ids = st.one_of(st.integers(0, VOCAB_SIZE + 1), st.just(END))
    chains = st.builds(Drafts, st.lists(token_ids, max_size=6))
    entries = st.builds(entry, st.integers(0, 5), st.one_of(chains, trees(token_ids, 6)))
    return draw(st.lists(entries, max_size=8))


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableLaw, list[int], SequenceSettings]:
    prompt = PROMPT[: draw(st.integers(1, len(PROMPT)))]
    return draw(LAWS), prompt, draw(sequence_settings(len(prompt)))


def said(
    data: st.DataObject,
    law: TableLaw,
    prompt: list[int],
    settings: SequenceSettings,
    plans: list[tuple[int, int, float]],
) -> list[int]:
    """The answer with drafts of all kinds, while answers are lost and workers forget."""
    target_faults = data.draw(st.lists(st.lists(FAULTS, max_size=3), min_size=1, max_size=2))
    draft_faults = data.draw(st.lists(FAULTS, max_size=8))
    script = data.draw(scripts(law))

    async def run() -> list[int]:
        targets = [
            FaultyConnection(target(law, faults, grammars=GRAMMARS)) for faults in target_faults
        ]
        unlike = replace(law, disagreement=0.3)
        drafts = [
            draft(lambda: ScriptedDrafter(script), draft_faults),
            draft(lambda: ModelDrafter(TableModel(unlike), GRAMMARS)),
            draft(lambda: ModelDrafter(TableModel(law))),
            draft(SuffixDrafter),
        ]
        workers = FixedWorkers(targets, [FaultyConnection(device) for device in drafts])
        return await answer(new_sequence(settings, prompt), workers, plans)

    return run_virtually(run())


def check_meets_schema(token_ids: list[int], settings: SequenceSettings) -> None:
    """A text that has ended by itself is JSON that meets the schema; others are its beginning."""
    ended = token_ids[-1] in settings.stop_token_ids
    text = b"".join(TOKENS[id] for id in (token_ids[:-1] if ended else token_ids))
    if token_ids[-1] == END:
        schema = json.loads(settings.grammar.removeprefix("start: %json "))
        jsonschema.validate(json.loads(text), schema)
    else:
        state = GRAMMARS.state(replace(settings, prompt_length=0))
        assert state is not None
        num_known = len(token_ids) - ended
        assert state.reach(type(state._consumed)("I", token_ids[:num_known])) == num_known


@given(st.data(), cases(), PLANS)
@examples(max_examples=80)
def test_faults_and_drafts_of_all_kinds_never_change_the_text(
    data: st.DataObject,
    case: tuple[TableLaw, list[int], SequenceSettings],
    plans: list[tuple[int, int, float]],
) -> None:
    law, prompt, settings = case
    token_ids = said(data, law, prompt, settings, plans)
    assert token_ids == plain_text(law, prompt, settings, GRAMMARS)
    check_meets_schema(token_ids, settings)


@given(st.data(), cases(), PLANS, st.sampled_from([AcceptanceRule.REJECTION, AcceptanceRule.BLOCK]))
@examples(max_examples=60)
def test_under_the_other_rules_too_the_text_never_leaves_the_grammar(
    data: st.DataObject,
    case: tuple[TableLaw, list[int], SequenceSettings],
    plans: list[tuple[int, int, float]],
    rule: AcceptanceRule,
) -> None:
    law, prompt, settings = case
    settings = replace(settings, temperature=1.0, acceptance_rule=rule)
    check_meets_schema(said(data, law, prompt, settings, plans), settings)


BIG = TableLaw(5, VOCAB_SIZE)


def held(schema: object, **changes: object) -> SequenceSettings:
    known = SequenceSettings(
        max_length=len(PROMPT) + 24,
        prompt_length=len(PROMPT),
        temperature=1.0,
        seed=3,
        stop_token_ids=(END,),
        grammar=f"start: %json {json.dumps(schema)}",
    )
    return replace(known, **changes)


def test_sequences_with_and_without_grammars_share_passes_and_a_pool_too_small_for_them() -> None:
    settings = [
        held(OBJECT),
        held(ARRAY, temperature=0.0),
        held(OBJECT, grammar=""),
        held(OBJECT, seed=9),
        held({"type": "nonsense"}),
        held(ARRAY, grammar="", temperature=0.0),
    ]

    async def run() -> list[list[int] | BaseException]:
        device = target(BIG, [Fault.NONE, Fault.WIPED], num_cells=24, grammars=GRAMMARS)
        drafter = draft(lambda: ModelDrafter(TableModel(BIG), GRAMMARS))
        workers = [
            FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)]) for _ in settings
        ]
        return await asyncio.gather(
            *(answer(new_sequence(s), w) for s, w in zip(settings, workers, strict=True)),
            return_exceptions=True,
        )

    answers = run_virtually(run())
    refusal = answers.pop(4)
    assert isinstance(refusal, RoundRefused) and "Invalid type: nonsense" in str(refusal)
    del settings[4]
    assert answers == [plain_text(BIG, PROMPT, s, GRAMMARS) for s in settings]


def test_a_draft_that_knows_the_grammar_is_accepted_and_one_that_does_not_is_not() -> None:
    def num_rounds(grammars: Grammars | None) -> int:
        async def run() -> int:
            GRAMMARS.state(held(OBJECT))  # compiled, so that no draft is left out for that
            device = target(BIG, grammars=GRAMMARS)
            drafter = draft(lambda: ModelDrafter(TableModel(BIG), grammars))
            workers = FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)])
            await answer(new_sequence(held(OBJECT)), workers)
            return device.num_rounds

        return run_virtually(run())

    num_tokens = len(plain_text(BIG, PROMPT, held(OBJECT), GRAMMARS))
    assert num_rounds(GRAMMARS) <= 1 + -(-(num_tokens - 1) // 5)
    assert num_rounds(GRAMMARS) < num_rounds(None)


def test_a_worker_without_a_tokenizer_refuses_grammars_and_nothing_else() -> None:
    async def run() -> list[int]:
        device = target(BIG)
        workers = FixedWorkers([FaultyConnection(device)])
        with pytest.raises(RoundRefused, match="settings.grammar: is set"):
            await answer(new_sequence(held(OBJECT)), workers)
        return await answer(new_sequence(held(OBJECT, grammar="")), workers)

    assert run_virtually(run()) == plain_text(BIG, PROMPT, held(OBJECT, grammar=""))


def reach_without_going_back(state: GrammarState, context: "object") -> int:
    new = list(context)[state.settings.prompt_length + len(state._consumed) :]  # type: ignore[call-overload]
    num_new = state._matcher.try_consume_tokens(new)
    state._consumed.extend(new[:num_new])
    return len(list(context))  # type: ignore[call-overload]


def test_a_matcher_that_does_not_go_back_where_a_draft_is_rejected_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_right() -> bool:
        async def run() -> list[int]:
            device = target(BIG, [Fault.NONE, Fault.LOST], grammars=GRAMMARS)
            unlike = replace(BIG, disagreement=0.4)
            drafter = draft(lambda: ModelDrafter(TableModel(unlike), GRAMMARS))
            workers = FixedWorkers([FaultyConnection(device)], [FaultyConnection(drafter)])
            return await answer(new_sequence(held(OBJECT)), workers)

        return run_virtually(run()) == expected

    expected = plain_text(BIG, PROMPT, held(OBJECT), GRAMMARS)
    assert is_right()
    monkeypatch.setattr(GrammarState, "reach", reach_without_going_back)
    with suppress(RoundRefused):
        assert not is_right()
