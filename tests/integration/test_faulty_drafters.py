"""Drafters that return nonsense, over real gRPC: the text stands, it is counted and said once.

Trees that are none: `test_trees_over_grpc`. Drafts that are late or lost: `test_round_faults`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan

import numpy as np
import pytest
from fed_drafter import FedDrafter
from plain_http import plain_client
from scraping import scraped
from scripted_generator import served
from table_requests import expected, request
from worker_servers import LAW, Answer, Cluster, answer, cluster, draft_server, target_server

from coordinator.requests import GenerationRequest, Speculation
from draft_service.drafters.draft_model import ModelDrafter
from draft_service.proposer import Drafter, Proposal
from paceline.engine.model import Logits
from paceline.engine.table_model import TableLaw, TableModel, TokenIds
from paceline.rounds import Support

LOG = "such drafts change no text"


class Distorted(ModelDrafter):
    """Proposes what the target says, and then something is done to it."""

    def __init__(self, distort: Callable[[Proposal], None], law: TableLaw = LAW) -> None:
        super().__init__(TableModel(law))
        self._distort = distort

    def extend(self, proposals: list[Proposal]) -> None:
        super().extend(proposals)
        for proposal in proposals:
            if proposal.is_done:
                self._distort(proposal)


def unknown(token_id: int) -> Callable[[Proposal], None]:
    def distort(proposal: Proposal) -> None:
        proposal.token_ids[-1:] = [token_id]

    return distort


def too_many(proposal: Proposal) -> None:
    proposal.token_ids *= 40
    proposal.supports *= 40


def supports(make: Callable[[Support], Support]) -> Callable[[Proposal], None]:
    def distort(proposal: Proposal) -> None:
        proposal.supports[-1] = make(proposal.supports[-1])

    return distort


class Numberless(TableLaw):
    """The law of the target, but now and then no numbers."""

    def logits(self, token_ids: TokenIds, num_logits: int) -> Logits:
        logits = super().logits(token_ids, num_logits)
        if len(token_ids) % 3 == 0:
            logits[-1, 5] = nan if len(token_ids) % 2 else inf
        return logits


class Forgetful(FedDrafter):
    """Loses the features that it was sent."""

    def extend(self, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            assert proposal.sequence.features is not None
            proposal.sequence.features.cut(0)
        super().extend(proposals)


async def faults_of(
    running: Cluster, asked: GenerationRequest, caplog: pytest.LogCaptureFixture
) -> tuple[Answer, dict[str, int]]:
    """An answer, and the failures that were counted, which must be told alike everywhere."""
    said = await answer(running.generator, asked)
    failures = dict(said.generation.stats.draft_failures)
    assert dict(running.generator.status().stats.draft_failures) == failures
    found = scraped(running.metrics.instruments)
    for reason, number in failures.items():
        counted = [
            value
            for name, value in found.items()
            if name.startswith("draft_failures_total{") and f"reason={reason}}}" in name
        ]
        assert counted == [number]
        lines = [line for line in caplog.messages if LOG in line and f": {reason};" in line]
        assert len(lines) == 1, f"{number} times {reason}"
    async with (
        served(running.generator, running.metrics) as url,
        plain_client() as client,
    ):
        status = (await client.get(f"{url}/status")).json()
    assert status["stats"]["draft_failures"] == failures
    return said, failures


FAULTS: dict[str, tuple[str, Callable[[], Drafter]]] = {
    "the first unknown id": ("unknown_token", lambda: Distorted(unknown(LAW.vocab_size))),
    "a huge id": ("unknown_token", lambda: Distorted(unknown(2**32 - 1))),
    "too many": ("too_many", lambda: Distorted(too_many)),
    "no numbers": (
        "not_a_number",
        lambda: ModelDrafter(TableModel(Numberless(LAW.seed))),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_stands_and_the_fault_is_counted(
    fault: str, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    reason, make = FAULTS[fault]
    draft = draft_server("faulty", make_drafter=make)
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("faulty", 4, max_tokens=60, temperature=temperature)
        said, failures = await faults_of(running, asked, caplog)
        assert said.token_ids == expected(asked)
        assert failures[reason] > 2
        stats = said.generation.stats
        assert stats.num_accepted_draft_tokens > 10, "what was good of it is used"
        assert stats.num_draft_tokens <= 4 * stats.num_spec_steps
        await running.until_free()


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(
    ("reason", "distort"),
    [
        ("unchecked", supports(lambda support: replace(support, weights=[nan]))),
        ("unchecked", supports(lambda support: Support((), ()))),
        ("unchecked", supports(lambda support: replace(support, weights=[*support.weights, 1.0]))),
        ("too_many", too_many),
    ],
)
async def test_laws_that_are_none_are_done_without_and_counted(
    rule: str,
    reason: str,
    distort: Callable[[Proposal], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = draft_server("faulty", make_drafter=lambda: Distorted(distort))
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("faulty", 4, max_tokens=40, temperature=1.0)
        asked = replace(asked, speculation=Speculation("faulty", 4, rule))
        said, failures = await faults_of(running, asked, caplog)
        assert len(said.token_ids) > 0
        assert failures[reason] > 1
        if reason == "unchecked":
            assert said.generation.stats.num_draft_tokens == 0


async def test_features_that_are_lost_are_counted_and_cost_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = draft_server("fed", make_drafter=lambda: Forgetful(LAW))
    async with cluster([target_server()], [draft]) as running:
        await running.until_ready()
        asked = request("fed", 4, max_tokens=60)
        said, failures = await faults_of(running, asked, caplog)
        assert said.token_ids == expected(asked)
        assert failures["no_features"] > 2


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
async def test_a_drafter_that_is_well_has_no_faults(
    temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("fed", "self", "suffix"):
        async with cluster([target_server()], [draft_server(name)]) as running:
            await running.until_ready()
            asked = request(name, 4, max_tokens=60, temperature=temperature)
            said, failures = await faults_of(running, asked, caplog)
            assert said.token_ids == expected(asked)
            assert failures == {}, name
    assert np.isfinite(LAW.logits(np.array([1, 2, 3]), 1)).all()


async def test_of_several_drafts_the_one_that_is_at_fault_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = {"too_many": too_many, "unknown_token": unknown(LAW.vocab_size)}
    drafts = {
        reason: draft_server("faulty", make_drafter=partial(Distorted, distort))
        for reason, distort in faults.items()
    }
    async with cluster([target_server()], drafts.values()) as running:
        await running.until_ready()
        asked = request("faulty", 4, max_tokens=60)
        assert (await answer(running.generator, asked)).token_ids == expected(asked)
    named = {line.partition(";")[0] for line in caplog.messages if LOG in line}
    assert named == {f"draft worker {drafts[reason].address}: {reason}" for reason in faults}
