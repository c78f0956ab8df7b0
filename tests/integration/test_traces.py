"""Spans of requests and rounds, through real servers to a real collector."""

import asyncio
from functools import partial

import grpc
import pytest
from coordinator_server import message, parts_of, token_ids_of
from span_collector import CollectedSpan, SpanCollector
from table_requests import request
from traced_cluster import total, traced
from worker_servers import answer, answer_with_accidents, target_server

import coordinator.request_spans
from paceline.telemetry.names import (
    DRAFT_FAILED,
    FURTHER_ROUNDS,
    PREEMPTION,
    PREFILL,
    PROPOSE,
    REQUEST_CANCELLED,
    ROUND,
    SESSION_LOAD,
    VERIFY,
    WORKER_COMPUTE,
    WORKER_LOST,
    WORKER_QUEUE,
)
from paceline.telemetry.span import enter_span
from paceline.v1.coordinator_pb2 import Chat, ChatMessage, GenerateRequest, Speculation

PROMPT = "the rain in the rain in the rain in"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
FOUR_DRAFTS = Speculation(method="suffix", num_speculative_tokens=4)


def asking(**changes: object) -> GenerateRequest:
    """For an answer with drafts in every round, however busy the machine is."""
    return message(**{"prompt": PROMPT, "speculation": FOUR_DRAFTS, **changes})


def rounds_of(spans: SpanCollector) -> list[CollectedSpan]:
    return [*spans.named(PREFILL), *spans.named(ROUND), *spans.named(FURTHER_ROUNDS)]


def root_of(spans: SpanCollector) -> CollectedSpan:
    [root] = [span for span in spans.spans if span.name.startswith("text_completion")]
    return root


async def test_a_request_is_one_tree_below_the_span_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch) as service:
        metadata = (
            ("traceparent", f"00-{TRACE}-{PARENT}-01"),
            ("tracestate", "vendor=opaque"),
            ("x-request-id", "asked-for"),
        )
        parts = await parts_of(service.stub.Generate(asking(), metadata=metadata))
        spans = await service.spans()
    root = root_of(spans)
    assert (root.kind, root.parent_id, root.is_error) == ("server", PARENT, False)
    assert root.attributes["rpc.response.status_code"] == "OK"
    assert root.attributes["paceline.request.id"] == "asked-for"
    assert root.attributes["gen_ai.usage.output_tokens"] == len(token_ids_of(parts))
    assert {span.trace_id for span in spans.spans} == {TRACE}
    assert {span.tracestate for span in spans.spans} == {"vendor=opaque"}
    assert len(spans.tree(root)) == len(spans.spans), "no span is lost or beside the tree"
    for name, service_name in ((PROPOSE, "paceline-draft"), (VERIFY, "paceline-target")):
        asked = spans.named(name, "client")
        served = spans.named(name, "server")
        assert len(asked) == len(served) > 1
        assert {span.service for span in served} == {service_name}
        for span in asked:
            [inner] = spans.children(span)
            # A proposal for which there is no room any more is answered without a pass.
            assert [s.name for s in spans.children(inner)] in ([], [WORKER_QUEUE, WORKER_COMPUTE])
    for parent in spans.spans:
        for child in spans.children(parent):
            assert child.started_ns >= parent.started_ns, (parent.name, child.name)


async def test_what_rounds_say_adds_up_to_what_the_answer_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch) as service:
        parts = await parts_of(service.stub.Generate(asking(max_tokens=60)))
        sent = sum(worker.traffic.sent_bytes for worker in service.running.pool.targets)
        received = sum(worker.traffic.received_bytes for worker in service.running.pool.targets)
        spans = await service.spans()
    stats = parts[-1].speculative_decoding
    assert stats.num_draft_tokens > stats.num_accepted_draft_tokens > 0, "some drafts are wrong"
    for said in (rounds_of(spans), [root_of(spans)]):
        assert total(said, "paceline.spec.rounds") == stats.num_spec_steps
        assert total(said, "paceline.spec.drafted") == stats.num_draft_tokens
        assert total(said, "paceline.spec.accepted") == stats.num_accepted_draft_tokens
        assert total(said, "paceline.spec.proposed") == stats.num_proposed_tokens
    assert total(rounds_of(spans), "paceline.round.passes") == stats.num_target_passes
    assert total(rounds_of(spans), "paceline.round.tokens") == stats.num_committed_tokens
    verifications = spans.named(VERIFY, "client")
    assert 0 < total(verifications, "paceline.sent_bytes") <= sent
    assert 0 < total(verifications, "paceline.received_bytes") <= received


async def test_rounds_behind_the_cap_share_one_span_with_their_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator.request_spans, "MAX_ROUND_SPANS", 3)
    async with traced(monkeypatch) as service:
        parts = await parts_of(service.stub.Generate(asking(max_tokens=60)))
        spans = await service.spans()
    stats = parts[-1].speculative_decoding
    assert [span.name for span in rounds_of(spans)] == [PREFILL, ROUND, ROUND, FURTHER_ROUNDS]
    rest = rounds_of(spans)[-1]
    assert rest.attributes["paceline.round.count"] > 1
    assert spans.children(rest) == [], "workers record nothing of them"
    assert total(rounds_of(spans), "paceline.spec.drafted") == stats.num_draft_tokens
    assert total(rounds_of(spans), "paceline.spec.accepted") == stats.num_accepted_draft_tokens
    assert total(rounds_of(spans), "paceline.round.passes") == stats.num_target_passes


@pytest.mark.parametrize(
    ("sampler", "flags"), [("always_off", "01"), ("parentbased_always_on", "00")]
)
async def test_what_is_not_sampled_is_recorded_nowhere(
    sampler: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with traced(monkeypatch, TRACES_SAMPLER=sampler) as service:
        metadata = (("traceparent", f"00-{TRACE}-{PARENT}-{flags}"),)
        await parts_of(service.stub.Generate(asking(), metadata=metadata))
        spans = await service.spans()
    assert spans.spans == []


async def test_the_flag_of_the_client_decides_where_nothing_else_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch, TRACES_SAMPLER="parentbased_always_off") as service:
        metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
        await parts_of(service.stub.Generate(asking()))
        await parts_of(service.stub.Generate(asking(), metadata=metadata))
        spans = await service.spans()
    assert {span.trace_id for span in spans.spans} == {TRACE}
    assert {span.service for span in spans.spans} == {
        f"paceline-{role}" for role in ("coordinator", "draft", "target")
    }


async def test_a_client_that_leaves_ends_every_span(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced(monkeypatch) as service:
        call = service.stub.Generate(asking(max_tokens=4000))
        await call.read()
        call.cancel()
        spans = await service.spans()
    root = root_of(spans)
    assert root.attributes["rpc.response.status_code"] == "CANCELLED"
    assert not root.is_error
    assert REQUEST_CANCELLED in [event.name for event in root.events]
    assert len(spans.tree(root)) == len(spans.spans)


async def test_an_error_of_ours_is_one_and_an_error_of_the_client_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.router.TARGET_WAIT_S", 0.05)
    async with traced(monkeypatch) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="temperature"):
            await parts_of(service.stub.Generate(message(temperature=-1.0)))
        call = service.stub.Generate(asking(max_tokens=4000))
        await call.read()
        await service.running.targets[0].kill()
        with pytest.raises(grpc.aio.AioRpcError, match="no target worker is ready"):
            while await call.read() is not grpc.aio.EOF:
                pass
        await service.running.targets[0].start()
        spans = await service.spans()
    wrong, failed = sorted(
        (span for span in spans.spans if span.name.startswith("text_completion")),
        key=lambda span: span.started_ns,
    )
    assert (wrong.attributes["error.type"], wrong.is_error) == ("InvalidRequest", False)
    assert wrong.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert (failed.attributes["error.type"], failed.is_error) == ("Unavailable", True)
    assert failed.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert any(span.is_error for span in spans.named(VERIFY, "client"))


async def test_a_lost_target_is_an_event_and_changes_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch, num_targets=2) as service:
        running = service.running
        expected = await answer(running.generator, request("off"))
        await running.until_free()
        root = service.tracer.serve("text_completion", {})
        enter_span(root)
        killed = []

        async def kill_its_target() -> None:
            [busy] = [server for server in running.targets if server.load.num_sequences]
            killed.append(busy)
            await busy.kill()

        found = await answer_with_accidents(running, request("suffix"), kill_its_target)
        enter_span(None)
        assert root is not None
        root.end()
        await killed[0].start()
        spans = await service.spans()
    assert found.token_ids == expected.token_ids
    losses = [event for span in rounds_of(spans) for event in span.events]
    assert [event.name for event in losses if event.name == WORKER_LOST] == [WORKER_LOST]
    assert total(rounds_of(spans), "paceline.round.tokens") == len(found.token_ids)
    assert len({span.attributes["paceline.target.worker"] for span in rounds_of(spans)}) == 2


async def test_a_lost_draft_is_told_in_the_round_that_missed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch) as service:
        root = service.tracer.serve("text_completion", {})
        enter_span(root)
        found = await answer_with_accidents(
            service.running, request("suffix", 4), service.running.drafts[0].kill
        )
        enter_span(None)
        assert root is not None
        root.end()
        await service.running.drafts[0].start()
        spans = await service.spans()
    assert found.token_ids
    events = [(event.name, event.attributes) for s in rounds_of(spans) for event in s.events]
    assert (DRAFT_FAILED, {"error.type": "lost"}) in events
    assert any(span.attributes.get("paceline.spec.failure") == "lost" for span in rounds_of(spans))


async def test_a_sequence_that_loses_its_room_says_what_was_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = partial(target_server, num_cells=6, max_model_len=96)
    async with traced(monkeypatch, target=small) as service:
        asked = [asking(prompt=f"{i}{PROMPT}", max_tokens=50) for i in range(6)]
        calls = [service.stub.Generate(one) for one in asked]
        await asyncio.gather(*map(parts_of, calls))
        assert service.running.targets[0].load.num_preemptions > 0
        spans = await service.spans()
    events = [event for s in spans.named(VERIFY, "client") for event in s.events]
    again = [event for event in events if event.name == PREEMPTION]
    assert again
    assert all(event.attributes["paceline.recomputed_tokens"] > 0 for event in again)


async def test_the_second_choice_points_at_the_prefill_whose_kv_it_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with traced(monkeypatch) as service:
        await parts_of(service.stub.Generate(asking(prompt=PROMPT * 8, n=2, temperature=1.0)))
        spans = await service.spans()
    first, second = spans.named(PREFILL)
    assert [span.attributes["paceline.choice.index"] for span in (first, second)] == [0, 1]
    assert first.span_id in second.links
    assert root_of(spans).attributes["gen_ai.usage.cache_read.input_tokens"] > 0
    assert len(root_of(spans).attributes["gen_ai.response.finish_reasons"]) == 2


CONVERSATION = Chat(messages=[ChatMessage(role="user", content="the rain in")])


@pytest.mark.parametrize(
    ("operation", "asked"),
    [("text_completion", {}), ("chat", {"prompt": None, "chat": CONVERSATION})],
)
async def test_a_resumed_request_points_at_the_one_that_it_goes_on_with(
    operation: str, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with traced(monkeypatch) as service:
        call = service.stub.Generate(message(request_id="again", max_tokens=4000, **asked))
        await call.read()
        call.cancel()
        await service.running.until_free()
        rest = service.stub.Generate(GenerateRequest(request_id="again", resume_from=[1]))
        await rest.read()
        rest.cancel()
        spans = await service.spans()
    first, second = spans.named(f"{operation} table:7")
    assert second.attributes["gen_ai.operation.name"] == operation
    assert second.links == [first.span_id]
    assert second.attributes["paceline.request.resumed"] is True
    assert second.trace_id != first.trace_id
    assert len(spans.named(SESSION_LOAD)) == 2
