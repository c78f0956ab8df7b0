"""The joint law of whole answers is the target's, whatever the rule and whatever goes wrong.

Answers of many seeds, made by the real decode loop, verifier and proposer, with the faults of
`fakes` between them, are counted and compared with the law of the table. The limit is fixed: a
right law would exceed it for one set of seeds in a million, and the seeds are always the same.
"""

import asyncio
from dataclasses import replace
from functools import cache

import pytest
from fakes import Fault, FaultyConnection, FixedWorkers
from joint_laws import Answer, is_plausible, joint_law
from lossless_runs import answer, draft, new_sequence, target
from virtual_time import run_virtually

from draft_service.drafters.draft_model import ModelDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.proposer import Drafter
from paceline.engine import draws
from paceline.engine.draws import Draws, Purpose
from paceline.engine.table_model import TableLaw, TableModel
from paceline.rounds import AcceptanceRule, SequenceSettings

LAW = TableLaw(3, vocab_size=6)
PROMPT = [1, 2, 4, 1, 2]
NUM_ANSWERS = 1500
NUM_ANSWERS_LONG = 10_000
NUM_CAUGHT = 500
"""As many are enough to see most of what is wrong."""
NUM_TOGETHER = 50
RULES = [*AcceptanceRule]
SETTINGS = SequenceSettings(
    max_length=len(PROMPT) + 4,
    temperature=1.0,
    top_p=0.9,
    stop_token_ids=(0,),
    prompt_length=len(PROMPT),
)
FAULTS = {
    "no faults": [Fault.NONE],
    "lost and doubled": [Fault.NONE, Fault.LOST, Fault.DOUBLED],
    "late": [Fault.LATE, Fault.NONE, Fault.VERY_LATE],
    "dying": [Fault.NONE, Fault.BROKEN, Fault.WIPED, Fault.FAILED],
}
PLANS = ((3, 1, 1.0), (2, 2, 0.2), (1, 1, 1.0))


def drafter(name: str) -> Drafter:
    if name == "suffix":
        return SuffixDrafter()
    return ModelDrafter(TableModel(replace(LAW, disagreement=0.5)))


def answers(
    settings: SequenceSettings,
    draft_faults: list[Fault],
    target_faults: list[Fault],
    drafter_name: str = "draft-model",
    num_answers: int = NUM_ANSWERS,
    num_times: int = 1,
) -> list[Answer]:
    """The last of as many answers to each seed, by the same workers; each seed is a tenant then."""

    async def together(first_seed: int) -> list[list[int]]:
        # As long as the answers take, and shifted, so that every round of them meets every fault.
        shift = first_seed // NUM_TOGETHER
        drafts = draft(lambda: drafter(drafter_name), (draft_faults * 9)[shift % 9 :])
        targets = [
            target(
                LAW,
                (target_faults * 3)[shift % 3 :],
                num_cells=NUM_TOGETHER * (4 if num_times == 1 else 12),
            )
            for _ in range(2)
        ]

        async def one(seed: int) -> list[int]:
            workers = FixedWorkers([*map(FaultyConnection, targets)], [FaultyConnection(drafts)])
            salt = "" if num_times == 1 else str(seed)
            sequence = new_sequence(replace(settings, seed=seed, cache_salt=salt), PROMPT)
            return await answer(sequence, workers, PLANS)

        for _ in range(num_times):
            said = await asyncio.gather(*map(one, range(first_seed, first_seed + NUM_TOGETHER)))
        return said

    groups = range(0, num_answers, NUM_TOGETHER)
    return [tuple(said) for first in groups for said in run_virtually(together(first))]


@cache
def expected() -> dict[Answer, float]:
    return joint_law(LAW, PROMPT, SETTINGS)


@pytest.mark.parametrize("rule", RULES)
def test_the_joint_law_of_answers_is_the_targets_through_faults_of_all_kinds(
    rule: AcceptanceRule,
) -> None:
    settings = replace(SETTINGS, acceptance_rule=rule)
    faults = [fault for kind in FAULTS.values() for fault in kind]
    assert is_plausible(answers(settings, faults, FAULTS["dying"]), expected())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("faults", FAULTS)
def test_the_joint_law_of_many_answers_is_the_targets(rule: AcceptanceRule, faults: str) -> None:
    settings = replace(SETTINGS, acceptance_rule=rule)
    target_faults = [Fault.NONE] if faults == "late" else FAULTS[faults]
    said = answers(settings, FAULTS[faults], target_faults, num_answers=NUM_ANSWERS_LONG)
    assert is_plausible(said, expected())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", RULES)
def test_drafts_that_are_not_sampled_keep_the_law_too(rule: AcceptanceRule) -> None:
    settings = replace(SETTINGS, acceptance_rule=rule)
    said = answers(settings, [Fault.NONE], [Fault.NONE], "suffix")
    assert is_plausible(said, expected())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rule", RULES)
def test_an_earlier_answer_to_the_same_seed_keeps_the_law(rule: AcceptanceRule) -> None:
    settings = replace(SETTINGS, acceptance_rule=rule)
    said = answers(settings, [Fault.NONE], [Fault.NONE], "suffix", num_times=2)
    assert is_plausible(said, expected())


def test_drafts_from_an_earlier_answer_to_the_same_seed_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why the suffix drafter looks at the sequence alone: its answer came from these numbers."""
    monkeypatch.setattr(SequenceSettings, "samples_drafts", False)
    settings = replace(SETTINGS, acceptance_rule=AcceptanceRule.REJECTION)
    said = answers(
        settings, [Fault.NONE], [Fault.NONE], "suffix", num_answers=NUM_CAUGHT, num_times=2
    )
    assert not is_plausible(said, expected())


def test_coupled_answers_do_not_depend_on_drafts_and_faults() -> None:
    told = [answers(SETTINGS, faults, [Fault.NONE], num_answers=100) for faults in FAULTS.values()]
    assert all(said == told[0] for said in told)


@pytest.mark.parametrize(
    ("rule", "num_answers"),
    [
        (AcceptanceRule.REJECTION, NUM_CAUGHT),
        # In the numbers themselves it is seen at once (`test_draws`).
        pytest.param(AcceptanceRule.BLOCK, NUM_ANSWERS, marks=pytest.mark.long),
    ],
)
def test_noise_shared_by_drafting_and_accepting_is_caught(
    rule: AcceptanceRule, num_answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(self: Draws, purpose: Purpose, position: int) -> float:
        return draws.single_uniform(self.settings.seed, self.start, position, 0, 1)

    monkeypatch.setattr(Draws, "_uniform", shared)
    settings = replace(SETTINGS, acceptance_rule=rule)
    said = answers(settings, [Fault.NONE], [Fault.NONE], num_answers=num_answers)
    assert not is_plausible(said, expected())


@pytest.mark.long
def test_numbers_of_block_that_come_back_in_the_next_round_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why the start of a round is in the key: position alone is enough for `rejection` only."""
    own = Draws._uniform

    def startless(self: Draws, purpose: Purpose, position: int) -> float:
        return own(Draws(self.settings, 0), purpose, position)

    monkeypatch.setattr(Draws, "_uniform", startless)
    settings = replace(SETTINGS, acceptance_rule=AcceptanceRule.BLOCK)
    said = answers(settings, [Fault.NONE], [Fault.NONE], num_answers=2 * NUM_ANSWERS)
    assert not is_plausible(said, expected())
