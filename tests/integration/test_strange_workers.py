"""Workers that are none of ours, or do not work: told by name, and tried again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import worker_servers
from session_stores import until
from worker_servers import INFO, cluster, target_server

from paceline.engine.tokenizer_files import TokenizerFile
from paceline.v1 import target_pb2
from paceline.wire import info_to_wire
from paceline.workers import worker
from paceline.workers.pool import WorkerPool

GARBAGE = b"\xff\xff"
GOOD = target_pb2.TargetServiceGetInfoResponse(info=info_to_wire(INFO)).SerializeToString()


class Stranger(grpc.GenericRpcHandler):
    """Says bytes, whatever it is asked; its streams end behind them."""

    def __init__(self, info: bytes, results: Sequence[bytes] = ()) -> None:
        self.info = info
        self.results = results

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method.endswith("/GetInfo"):
            return grpc.unary_unary_rpc_method_handler(self._get_info)
        return grpc.stream_stream_rpc_method_handler(self._verify)

    async def _get_info(self, _: bytes, context: object) -> bytes:
        return self.info

    async def _verify(self, _: object, context: object) -> AsyncIterator[bytes]:
        for result in self.results:
            yield result


@asynccontextmanager
async def pool_with(stranger: Stranger) -> AsyncIterator[WorkerPool]:
    """A pool that has it as its only target."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((stranger,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pool = WorkerPool([f"127.0.0.1:{port}"], [])
    pool.start()
    try:
        yield pool
    finally:
        await pool.stop()
        await server.stop(0)


async def test_a_tokenizer_that_cannot_be_used_is_told_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a coordinator that has begun to wait for it, and would wait for ever."""
    target = target_server()
    with monkeypatch.context() as patch:
        patch.setattr(worker_servers, "TOKENIZER_FILES", [TokenizerFile("tokenizer.json", b"?")])
        async with cluster([target]) as running:
            loading = asyncio.create_task(running.generator.load_tokenizer())
            await until(lambda: "tokenizer.json cannot be read" in caplog.text)
            patch.undo()
            await target.kill()
            await target.start()
            await asyncio.wait_for(loading, 20)


@pytest.mark.parametrize("stranger", [Stranger(GARBAGE), Stranger(GOOD, [GARBAGE])])
async def test_a_worker_that_says_garbage_is_told_so_and_tried_again(stranger: Stranger) -> None:
    async with pool_with(stranger) as pool:
        [target] = pool.targets
        await until(lambda: "does not answer as a target worker does" in target.reason)
        assert not target.is_ready
        target.info = None
        stranger.info = GOOD
        await until(lambda: target.info is not None)


async def test_the_pauses_grow_when_the_stream_to_a_worker_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    async with pool_with(Stranger(GOOD)) as pool:
        [target] = pool.targets
        await until(lambda: target.pauses.next_s > 0.03)
        assert target.reason == "the worker ended the stream"
