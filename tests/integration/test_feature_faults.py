"""Rounds that go wrong, with heads that are fed: right drafts as soon as features are there again.

A head knows what the target says (`aligned_head`), so each draft that it proposes is accepted, or
something in the rows that it keeps is out of line.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aligned_head import aligned_head, aligned_medusa, next_token, save_target
from fakes import Fault, FaultyConnection, FaultyDevice, FixedWorkers
from lossless_runs import LIMITS, ScriptedSpeculation, new_sequence
from virtual_time import run_virtually

from coordinator.decode_loop import decode
from draft_service.config import DraftSettings
from draft_service.drafters.eagle import EagleDrafter
from draft_service.drafters.medusa import MedusaDrafter
from draft_service.proposer import Drafter, Proposer
from paceline.engine.device import CPU
from paceline.engine.loading import load_model
from paceline.engine.transformer import TransformerModel
from paceline.engine.worker_head import build_medusa_head, build_worker_head
from paceline.rounds import SequenceSettings
from target_service.verifier import Verifier

PROMPT = [*b"the rain in the plain"]
NUM_TOKENS = 30
SETTINGS = SequenceSettings(max_length=len(PROMPT) + NUM_TOKENS)
WINDOW = 8
PATIENT = ((4, 1, 1.0),)


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@dataclass(frozen=True)
class Fed:
    """A drafter that is fed, and how many of its drafts are accepted where nothing goes wrong."""

    make: Callable[[], Drafter]
    feature_layers: tuple[int, ...]
    feature_size: int
    num_drafts: int


@pytest.fixture(scope="module", params=["eagle", "medusa"])
def fed(
    request: pytest.FixtureRequest, target_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Fed:
    folder = tmp_path_factory.mktemp("head")
    files = aligned_head() if request.param == "eagle" else aligned_medusa("authors")
    path, model = str(files.write(folder)), str(target_folder)
    settings = DraftSettings(
        drafter=request.param, model=model, head=path, feature_projection=False, dtype="float32"
    )
    if request.param == "eagle":
        head = build_worker_head(settings, CPU).head
        return Fed(lambda: EagleDrafter(head), (2, 1, 0), head.feature_size, 23)
    heads = build_medusa_head(settings, CPU).head
    return Fed(lambda: MedusaDrafter(heads), (3,), heads.feature_size, 21)


@pytest.fixture
def model(target_folder: Path, fed: Fed) -> TransformerModel:
    loaded = load_model(str(target_folder), dtype="float32", device="cpu")
    return TransformerModel(
        loaded.module, loaded.vocab_size, 128, 4096, feature_layers=fed.feature_layers
    )


def run(
    model: TransformerModel,
    fed: Fed,
    targets: list[tuple[Fault, ...]],
    drafts: list[tuple[Fault, ...]],
) -> tuple[int, int]:
    """Drafts checked and accepted in an answer, which is what it should be."""

    def draft(faults: tuple[Fault, ...]) -> FaultyConnection:
        device = FaultyDevice(lambda: Proposer(fed.make(), 8, fed.feature_size), faults)
        device.wants_features = True
        return FaultyConnection(device)

    def target(faults: tuple[Fault, ...]) -> FaultyConnection:
        limits = replace(LIMITS, feature_window=WINDOW)
        return FaultyConnection(FaultyDevice(lambda: Verifier(model, limits), faults))

    async def answer() -> tuple[int, int]:
        workers = FixedWorkers([target(f) for f in targets], [draft(f) for f in drafts])
        sequence = new_sequence(SETTINGS, PROMPT)
        num_drafts = num_accepted = 0
        async with aclosing(decode(sequence, workers, ScriptedSpeculation(PATIENT))) as rounds:
            async for committed in rounds:
                num_drafts += committed.num_draft_tokens
                num_accepted += committed.num_accepted_tokens
        said = sequence.log.token_ids[len(PROMPT) - 1 :].tolist()
        assert said[1:] == [next_token(token_id) for token_id in said[:-1]]
        assert len(said) == NUM_TOKENS + 1
        return num_drafts, num_accepted

    return run_virtually(answer())


def test_without_faults_all_but_the_first_round_are_full_of_right_drafts(
    model: TransformerModel, fed: Fed
) -> None:
    assert run(model, fed, [()], [()]) == (fed.num_drafts, fed.num_drafts)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_draft_that_fails_or_is_lost_costs_a_round_and_misleads_nobody(
    model: TransformerModel, fed: Fed, fault: Fault, place: int
) -> None:
    num_drafts, num_accepted = run(model, fed, [()], [(Fault.NONE,) * place + (fault,), ()])
    assert num_accepted == num_drafts >= fed.num_drafts - 5


@pytest.mark.parametrize("fault", [Fault.WIPED, Fault.BROKEN, Fault.FAILED, Fault.LOST])
def test_a_target_that_has_lost_the_sequence_has_features_of_it_again(
    model: TransformerModel, fed: Fed, fault: Fault
) -> None:
    num_drafts, num_accepted = run(model, fed, [(Fault.NONE, Fault.NONE, fault), ()], [()])
    assert num_accepted == num_drafts >= fed.num_drafts - 5
