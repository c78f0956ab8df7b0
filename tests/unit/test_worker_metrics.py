"""What Prometheus is told of a draft and of a target."""

from dataclasses import replace
from types import SimpleNamespace

from scraping import Samples, scraped
from worker_servers import INFO, LAW

from draft_service.drafters.suffix import SuffixDrafter
from draft_service.metrics import DraftMetrics
from draft_service.proposer import Proposer
from paceline.engine.device_worker import Caller, DeviceWorker, device_thread
from paceline.engine.table_model import TableModel
from paceline.rounds import (
    DraftFault,
    Drafts,
    ProposeResult,
    RoundError,
    RoundErrorReason,
    RoundTiming,
    SequenceSettings,
    VerifyResult,
    VerifyRound,
)
from paceline.token_log import TokenLog
from target_service.metrics import TargetMetrics
from target_service.verifier import Verifier, VerifierLimits

TIMING = RoundTiming(queue_us=2000, compute_us=40_000)


def failed(reason: RoundErrorReason) -> RoundError:
    return RoundError(reason, "why")


class Target:
    """A target whose device runs when the test says so."""

    def __init__(self) -> None:
        self.model = TableModel(LAW)
        self.verifier = Verifier(self.model, VerifierLimits())
        self.worker = DeviceWorker(self.verifier, device_thread("never started"))
        self.metrics = TargetMetrics(
            self.worker, self.verifier.passes, self.model.kv_cache, replace(INFO, numerics="n" * 40)
        )

    def submit(self, *rounds: VerifyRound) -> None:
        self.worker.submit(Caller(lambda results, load: self.metrics.answered(results)), rounds)
        self.worker._drain()

    def run(self) -> None:
        while self.verifier.has_work:
            self.worker._pass()

    @property
    def values(self) -> Samples:
        return scraped(self.metrics.instruments)


def verify_round(sequence_id: str, number: int, prompt: list[int], start: int = 0) -> VerifyRound:
    settings = SequenceSettings(max_length=100, prompt_length=len(prompt))
    span = TokenLog.of(prompt).span(start)
    return VerifyRound(sequence_id, number, span, settings=settings)


def test_rounds_are_counted_by_what_became_of_them() -> None:
    target = Target()
    target.metrics.answered(
        [
            VerifyResult("a", 1, held=3),
            VerifyResult("a", 2, error=failed(RoundErrorReason.TOO_LONG)),
            VerifyResult("a", 3, error=failed(RoundErrorReason.INTERNAL)),
            VerifyResult(
                "a", 4, token_ids=(1, 2), num_draft_tokens=4, num_accepted_tokens=1, timing=TIMING
            ),
        ]
    )
    values = target.values
    outcomes = ("answered", "resend", "refused", "failed", "superseded")
    rounds = [values[f"worker_rounds_total{{outcome={name},role=target}}"] for name in outcomes]
    assert rounds == [1, 1, 1, 1, 0]
    assert values["worker_queue_seconds_sum{role=target}"] == 0.002
    assert values["worker_compute_seconds_sum{role=target}"] == 0.04
    assert values["verify_draft_tokens_total"] == 4
    assert values["verify_accepted_tokens_total"] == 1
    assert values["verify_committed_tokens_total"] == 2
    (build,) = (name for name in values if name.startswith("build_info"))
    assert f"model=table:7,numerics={'n' * 12},service=target" in build


def test_a_target_shows_what_it_holds_runs_and_finds_again() -> None:
    target = Target()
    prompt = list(range(1, 41))
    target.submit(verify_round("a", 1, prompt), verify_round("a", 2, prompt))
    values = target.values
    assert values["worker_rounds_total{outcome=superseded,role=target}"] == 1
    assert values["worker_rounds_waiting{role=target}"] == 1
    assert values["worker_sequences{role=target}"] == 1
    target.run()
    values = target.values
    assert values["worker_rounds_waiting{role=target}"] == 0
    assert values["worker_passes_total{role=target}"] == 1
    assert values["worker_pass_rows_total"] == len(prompt)
    assert values["worker_pass_sequences_total{role=target}"] == 1
    assert values["worker_pass_seconds_total{role=target}"] > 0
    used = values["kv_cache_used_tokens{role=target}"]
    capacity = values["kv_cache_capacity_tokens{role=target}"]
    assert values["kv_cache_usage_perc{role=target}"] == used / capacity > 0
    assert (values["prefix_cache_queries_total"], values["prefix_cache_hits_total"]) == (40, 0)
    target.submit(verify_round("b", 1, prompt))
    target.run()
    assert target.values["prefix_cache_hits_total"] == 32  # whole blocks, and not the last token


def test_what_a_target_shows_of_its_load_is_0_behind_the_last_caller() -> None:
    target = Target()
    caller: Caller[VerifyResult] = Caller(lambda results, load: None)
    target.worker.submit(caller, [verify_round("a", 1, list(range(1, 41)))])
    target.worker._drain()
    target.run()
    target.worker.leave(caller)
    target.worker._drain()
    values = target.values
    for name in ("worker_rounds_waiting", "worker_sequences", "kv_cache_used_tokens"):
        assert values[f"{name}{{role=target}}"] == 0
    assert values["kv_cache_retained_tokens"] > 0


def test_a_target_of_several_ranks_shows_how_many_and_what_they_exchange() -> None:
    target = Target()
    assert target.values["target_tensor_parallel_size"] == 1
    assert target.values["rank_exchange_bytes_total{direction=sent}"] == 0
    group = SimpleNamespace(size=3, num_bytes_sent=70, num_bytes_received=5)
    verifier = target.verifier
    metrics = TargetMetrics(target.worker, verifier.passes, target.model.kv_cache, INFO, group)
    group.num_bytes_sent += 7
    values = scraped(metrics.instruments)
    assert values["target_tensor_parallel_size"] == 3
    assert values["rank_exchange_bytes_total{direction=sent}"] == 77
    assert values["rank_exchange_bytes_total{direction=received}"] == 5


def test_drafts_are_counted_by_what_they_proposed_and_their_faults() -> None:
    proposer = Proposer(SuffixDrafter(), 16)
    worker = DeviceWorker(proposer, device_thread("never started"))
    metrics = DraftMetrics(worker, proposer.passes, replace(INFO, drafter="suffix"))
    steps = replace(TIMING, num_steps=3)
    metrics.answered(
        [
            ProposeResult("a", 1, drafts=Drafts((1, 2, 3)), timing=steps),
            ProposeResult("a", 2, fault=DraftFault.NO_FEATURES, timing=TIMING),
            ProposeResult("a", 3, held=2),
        ]
    )
    values = scraped(metrics.instruments)
    assert values["propose_draft_tokens_total"] == 3
    assert values["propose_steps_total"] == 3
    assert values["propose_empty_total"] == 1
    assert values["propose_faults_total{reason=no_features}"] == 1
    assert values["propose_faults_total{reason=not_a_number}"] == 0
    assert values["worker_rounds_total{outcome=answered,role=draft}"] == 2
    assert values["kv_cache_usage_perc{role=draft}"] == 0
