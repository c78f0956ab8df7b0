"""A real Prometheus scrapes real services: every query has an answer, and all figures agree.

One set of services for all tests, in order: they are used, then looked at, then a draft is killed
and Redis stopped, and they are looked at again.
"""

import asyncio
import re
from collections.abc import Iterator

import pytest
from answers import Body, ask, ask_all, drafts, grpc_request, http_client
from conftest import TABLE
from observed import is_idle, metrics, soon
from plain_http import plain_get
from processes import Processes, Service, Stack
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_server import ManagedPrometheus, needs_prometheus, static_jobs
from queries import (
    DASHBOARDS,
    NOT_HERE,
    RULES,
    is_broken,
    queries,
    rules,
    until_answered,
    without_limits,
)
from redis_server import ManagedRedis
from scraping import Samples, samples_of, total

from paceline.client import Client

pytestmark = [needs_prometheus, pytest.mark.timeout(900)]

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
COUNTERS = '{__name__=~"paceline_.+_(total|count|sum|bucket)",job=~"coordinator|target"}'
BODIES: list[Body] = [
    {
        "prompt": f"{n % 3} to be or not to be, that is the question",
        "seed": n,
        "max_tokens": 60,
        "speculation": drafts(("suffix", "draft-model")[n % 2], 4),
    }
    for n in range(16)
]


@pytest.fixture(scope="module")
def redis() -> Iterator[ManagedRedis]:
    with ManagedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def stack(processes: Processes, redis: ManagedRedis) -> Iterator[Stack]:
    workers = {
        "suffix": processes.draft("suffix"),
        "draft-model": processes.draft("draft-model", model=f"{TABLE}:0.2"),
    }
    stack = processes.stack(processes.target(model=TABLE), workers, redis.url)
    yield stack
    for service in (stack.coordinator, *stack.workers):
        service.stop()


@pytest.fixture(scope="module")
def prometheus(stack: Stack) -> Iterator[ManagedPrometheus]:
    jobs = {
        "coordinator": [stack.coordinator.metrics_address],
        "target": [stack.target.metrics_address],
        "draft": [draft.metrics_address for draft in stack.drafts.values()],
    }
    with ManagedPrometheus(static_jobs(jobs), RULES) as prometheus:
        yield prometheus


def scrape(service: Service) -> Samples:
    return samples_of(plain_get(f"http://{service.metrics_address}/metrics").text)


async def use(stack: Stack) -> int:
    """Ask in all ways, also wrongly; returns the tokens of the answers."""
    coordinator = stack.coordinator
    answers = await ask_all(coordinator, BODIES, concurrency=4)
    left = {"prompt": "left alone", "ignore_eos": True, "max_tokens": 2000, "stream": True}
    async with http_client(coordinator.url) as client:
        for path in [f"/{n}/no-such-path" for n in range(50)] + ["/v1/models"]:
            await client.get(path)
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 10**9})
        async with client.stream("POST", "/v1/completions", json=left) as response:
            async for _ in response.aiter_lines():
                break
    async with Client(coordinator.grpc_address) as client:
        async for _ in client.generate(grpc_request({"prompt": "over gRPC", "max_tokens": 4})):
            pass
    return sum(answer.num_completion_tokens for answer in answers)


async def test_every_query_has_an_answer_while_the_service_is_used(
    stack: Stack, prometheus: ManagedPrometheus
) -> None:
    num_tokens = await use(stack)
    await soon(lambda: is_idle(stack.coordinator), "nothing runs any more")
    assert (await metrics(stack.coordinator))["generation_tokens_total"] >= num_tokens
    expressions = [query for path in DASHBOARDS for query in queries(path)]
    expressions += [rule["expr"] for rule in rules() if "record" in rule]
    expressions += [without_limits(rule["expr"]) for rule in rules() if "alert" in rule]
    healthy = [one for one in expressions if not is_broken(one) and NOT_HERE not in one]
    assert len(healthy) > 60
    # Rates want something that happens between two scrapes.
    using = asyncio.create_task(keep_using(stack))
    try:
        await until_answered(prometheus, healthy)
    finally:
        using.cancel()
        await asyncio.wait((using,))
    assert prometheus.query('ALERTS{alertstate="firing"}') == []


async def keep_using(stack: Stack) -> None:
    while True:
        await use(stack)
        await asyncio.sleep(0.5)


WORK = ("worker_sequences", "worker_rounds_waiting", "kv_cache_used_tokens")
"""Gauges that are 0 in a worker that nobody needs."""


async def until_idle(stack: Stack) -> None:
    """Wait until nothing runs, by the workers' own word too: they may end what was left later."""

    async def is_every_worker_idle() -> bool:
        found = [scrape(worker) for worker in stack.workers]
        return not any(total(samples, name) for samples in found for name in WORK)

    await soon(lambda: is_idle(stack.coordinator), "nothing runs any more")
    await soon(is_every_worker_idle, "no worker has anything to do")


async def test_the_figures_of_the_services_and_of_the_answers_agree(stack: Stack) -> None:
    services = [stack.coordinator, *stack.workers]
    await until_idle(stack)
    before = [scrape(service) for service in services]
    answers = await ask_all(stack.coordinator, BODIES, concurrency=4)
    await until_idle(stack)
    after = [scrape(service) for service in services]

    def grown(name: str, service: int = 0) -> float:
        return total(after[service], name) - total(before[service], name)

    for ours, theirs, said in (
        ("spec_decode_num_draft_tokens", "verify_draft_tokens", "num_draft_tokens"),
        ("spec_decode_num_accepted_tokens", "verify_accepted_tokens", "num_accepted_draft_tokens"),
    ):
        told = sum(answer.speculation[said] for answer in answers)
        assert grown(f"{ours}_total") == grown(f"{theirs}_total", 1) == told > 0
    assert grown("target_tokens_total") == grown("verify_committed_tokens_total", 1)
    num_passes = sum(answer.speculation["num_target_passes"] for answer in answers)
    assert grown("target_passes_total") == num_passes
    assert grown("generation_tokens_total") == sum(one.num_completion_tokens for one in answers)
    num_prompt_tokens = sum(answer.num_prompt_tokens for answer in answers)
    assert grown("prompt_tokens_total") == grown("prefix_cache_queries_total", 1)
    assert grown("prompt_tokens_total") == num_prompt_tokens
    # Drafts propose one token more, which nobody checks, when they first read a prompt.
    num_proposed = sum(grown("propose_draft_tokens_total", number) for number in (2, 3))
    assert 0 < grown("spec_decode_num_proposed_tokens_total") <= num_proposed
    assert after[0]["workers{role=draft,state=ready}"] == 2
    assert after[0]["grpc_calls_total{code=OK,method=Generate}"] >= 1


async def test_an_idle_service_shows_no_load(stack: Stack) -> None:
    await until_idle(stack)
    samples = scrape(stack.coordinator)
    for name in ("num_requests_running", "num_requests_waiting"):
        assert samples[name] == 0
    assert samples["session_store_unwritten_records"] == 0
    assert total(samples, "degraded") == 0
    assert total(samples, "grpc_calls_in_flight") == 0
    for worker in stack.workers:
        calls = total(scrape(worker), "grpc_calls_in_flight")
        assert calls == 1, "the coordinator's stream"


async def test_labels_stay_few_whatever_is_asked_for(stack: Stack) -> None:
    before = scrape(stack.coordinator)
    await use(stack)
    added = set(scrape(stack.coordinator)) - set(before)
    # How a call ends is one of gRPC's 17 statuses.
    assert {name for name in added if not name.startswith("grpc_calls_total{")} == set()
    assert before["http_responses_total{route=none,status_class=4xx}"] >= 50
    assert before["http_responses_total{route=/v1/completions,status_class=4xx}"] >= 1
    assert before["requests_refused_total{reason=invalid}"] >= 1


def test_openmetrics_parses_as_its_own_parser_has_it(stack: Stack) -> None:
    for service in (stack.coordinator, *stack.workers):
        url = f"http://{service.metrics_address}/metrics"
        response = plain_get(url, headers=OPENMETRICS)
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        families = list(openmetrics.text_string_to_metric_families(response.text))
        assert len({family.name for family in families}) == len(families) > 20


async def test_what_breaks_shows_and_counters_go_on(
    stack: Stack, redis: ManagedRedis, prometheus: ManagedPrometheus
) -> None:
    draft = stack.drafts["draft-model"]
    body = {"prompt": "Once upon a time", "ignore_eos": True, "max_tokens": 1200, "stream": True}
    body["speculation"] = drafts("draft-model", 4)
    async with (
        http_client(stack.coordinator.url) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        async for _ in response.aiter_lines():
            draft.kill()
            redis.kill()
            break
        await soon(lambda: has_failed(stack), "a round misses its draft")
    other = stack.drafts["suffix"]
    other.kill()
    expressions = [query for path in DASHBOARDS for query in queries(path)]
    expressions += [without_limits(rule["expr"]) for rule in rules() if "alert" in rule]
    broken = [of_a_new_series(one) for one in expressions if is_broken(one)]
    assert len(broken) >= 4
    broken += [
        'paceline_degraded{reason="no_draft"} == 1',
        'paceline_degraded{reason="session_store"} == 1',
        'paceline_workers{role="draft",state="not_ready"} == 2',
        'paceline_worker_losses_total{role="draft"} >= 2',
        'ALERTS{alertname="PacelineNoDraft",alertstate="pending"}',
        'ALERTS{alertname="PacelineRedisAway",alertstate="pending"}',
    ]
    await until_answered(prometheus, broken)
    counters = prometheus.query(f"{COUNTERS}[10m]")
    assert len(counters) > 200
    for series in counters:
        values = [float(value) for _, value in series["values"]]
        assert values == sorted(values), series["metric"]
    await soon(lambda: is_quiet(stack), "the gauges are back at 0")
    plain = await ask(stack.coordinator, {"prompt": "Once", "max_tokens": 5})
    assert plain.num_completion_tokens == 5


def of_a_new_series(expression: str) -> str:
    """Without a rate: what was counted before its first scrape is no increase. And of any reason,
    since no drafter here makes mistakes."""
    expression = re.sub(r"rate\((.+?)\[\w+\]\)", r"(\1)", expression)
    return re.sub(r'reason!?[=~]+"[^"]*"', 'reason=~".+"', expression)


async def has_failed(stack: Stack) -> bool:
    return (await metrics(stack.coordinator)).get("draft_failures_total", 0) > 0


async def is_quiet(stack: Stack) -> bool:
    running = (await metrics(stack.coordinator))["num_requests_running"]
    held = total(scrape(stack.target), "worker_sequences")
    used = total(scrape(stack.target), "kv_cache_used_tokens")
    return running == held == used == 0
