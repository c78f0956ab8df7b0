"""The joint law of whole answers is the target's when a head drafts that is fed by the target.

As in `test_laws_of_answers`, with a real EAGLE head of random weights, which knows five of the six
tokens and drafts from the features of a table model: rejection and block sample its drafts.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
from eagle_heads import HIDDEN, random_head
from eagle_owner import rows_for
from fakes import Fault, FaultyConnection, FaultyDevice, FixedWorkers
from joint_laws import Answer, is_plausible, joint_law
from lossless_runs import LIMITS, ScriptedSpeculation, new_sequence
from virtual_time import run_virtually

from coordinator.decode_loop import Committed, decode
from coordinator.sequence import Sequence
from draft_service.drafters.eagle import EagleDrafter
from draft_service.proposer import Proposer
from paceline.engine.eagle_checkpoint import read_head_weights
from paceline.engine.eagle_head import EagleHead
from paceline.engine.head_tensors import Target
from paceline.engine.kv_cache import KVSequence
from paceline.engine.model import Features
from paceline.engine.table_model import TableLaw, TableModel, TokenIds
from paceline.heads.eagle_config import read_head_config
from paceline.rounds import AcceptanceRule, SequenceSettings
from target_service.verifier import Verifier

LAW = TableLaw(3, vocab_size=6)
PROMPT = [1, 2, 4, 1, 2]
NUM_ANSWERS = 400
NUM_TOGETHER = 50
SETTINGS = SequenceSettings(
    max_length=len(PROMPT) + 4, temperature=1.0, top_p=0.9, prompt_length=len(PROMPT)
)


class FeedingTable(TableModel):
    """A table model with features as large as a model's."""

    @property
    def feature_size(self) -> int:
        return 3 * HIDDEN

    def features(self, kv: KVSequence[TokenIds], start: int, end: int) -> Features:
        return rows_for(np.asarray(kv.storage[:end]).tolist())[start:]


class Counting(ScriptedSpeculation):
    """Knows how many drafts became text."""

    num_accepted = 0

    def observe(self, sequence: Sequence, committed: Committed) -> None:
        super().observe(sequence, committed)
        Counting.num_accepted += committed.num_accepted_tokens


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    directory = random_head(LAW.vocab_size, 5).write(tmp_path_factory.mktemp("head"))
    target = Target("table", directory, HIDDEN, LAW.vocab_size, 3, has_tied_embeddings=False)
    config = read_head_config(str(directory))
    weights = read_head_weights(str(directory), config, target)
    return EagleHead(config, weights, LAW.vocab_size)


def answers(head: EagleHead, settings: SequenceSettings) -> list[Answer]:
    """As many as there are, through drafts and targets that are lost and wiped."""

    def verifier() -> Verifier:
        return Verifier(FeedingTable(LAW, num_cells=4 * NUM_TOGETHER, cell_size=4), LIMITS)

    def proposer() -> Proposer:
        return Proposer(EagleDrafter(head), 8, head.feature_size)

    async def together(first_seed: int) -> list[list[int]]:
        target = FaultyDevice(verifier, [Fault.NONE, Fault.NONE, Fault.WIPED])
        draft = FaultyDevice(proposer, [Fault.NONE, Fault.DOUBLED, Fault.NONE, Fault.WIPED])
        draft.wants_features = True

        async def one(seed: int) -> list[int]:
            workers = FixedWorkers([FaultyConnection(target)] * 2, [FaultyConnection(draft)])
            sequence = new_sequence(replace(settings, seed=seed), PROMPT)
            plans = Counting(((3, 1, 1.0), (2, 2, 1.0)))
            async with aclosing(decode(sequence, workers, plans)) as rounds:
                return [id async for committed in rounds for id in committed.token_ids]

        seeds = range(first_seed, first_seed + NUM_TOGETHER)
        return await asyncio.gather(*map(one, seeds))

    groups = range(0, NUM_ANSWERS, NUM_TOGETHER)
    return [tuple(said) for first in groups for said in run_virtually(together(first))]


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_the_joint_law_of_answers_is_the_targets_with_drafts_of_a_fed_head(
    head: EagleHead, rule: AcceptanceRule
) -> None:
    Counting.num_accepted = 0
    said = answers(head, replace(SETTINGS, acceptance_rule=rule))
    assert is_plausible(said, joint_law(LAW, PROMPT, SETTINGS))
    assert Counting.num_accepted > NUM_ANSWERS / 4
