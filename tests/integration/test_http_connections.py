"""What happens to the work when a client leaves, stalls or just waits."""

import asyncio
import json
from contextlib import closing
from itertools import product

import pytest
from http_service import CHAT, COMPLETIONS, EOS, Service, body, parsed, rounds_of
from real_tokenizers import smollm2_tokenizer
from waiting import SOON_S

from coordinator.http import event_stream
from paceline.errors import Unavailable


@pytest.mark.parametrize("stage", ["admission", "first token", "later"])
async def test_work_ends_at_once_when_the_client_leaves(service: Service, stage: str) -> None:
    generator, never = service.generator, asyncio.Event()
    for number, (path, stream) in enumerate(product((CHAT, COMPLETIONS), (False, True)), 1):
        generator.admission = never if stage == "admission" else None
        generator.script = [never] if stage == "first token" else [(33, 33), never]
        generator.waiting.clear()
        generator.closed.clear()
        asking = asyncio.create_task(service.post(path, stream=stream))
        async with asyncio.timeout(SOON_S):
            await generator.waiting.wait()
        await asyncio.sleep(0.02)
        assert not generator.closed.is_set()
        asking.cancel()
        async with asyncio.timeout(SOON_S):
            await generator.closed.wait()
        assert generator.num_streams == (0 if stage == "admission" else number)
    generator.admission, generator.script = None, list(rounds_of("fine"))
    answer = (await service.post(CHAT)).json()
    assert answer["choices"][0]["message"]["content"] == "fine"


async def test_a_client_that_leaves_before_its_body_is_complete_is_no_error(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
    writer.write(b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    await service.post(CHAT)
    writer.close()
    assert await reader.read() == b""
    await service.post(CHAT)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_the_work_of_a_completed_request_has_ended(service: Service) -> None:
    for stream in (False, True):
        service.generator.closed.clear()
        await service.post(CHAT, stream=stream)
        assert service.generator.closed.is_set()


async def test_a_client_that_takes_nothing_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STALLED_S", 0.2)
    long = max(range(49152), key=lambda token_id: len(smollm2_tokenizer().token_bytes(token_id)))
    service.generator.script = [(long,) * 5000] * 2000
    host, port = service.url.removeprefix("http://").split(":")
    data = json.dumps(body(COMPLETIONS, stream=True, max_tokens=10**7)).encode()
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    with closing(writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"content-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(data) + data)
        async with asyncio.timeout(SOON_S):
            await service.generator.closed.wait()
        assert not reader.at_eof()


async def test_comments_keep_a_silent_connection_alive(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    service.generator.script = [0.2, (33,), 0.2, (EOS,)]
    response = await service.post(CHAT, stream=True)
    blocks = response.text.split("\n\n")
    assert blocks[0] == ": keep-alive"
    first = next(index for index, block in enumerate(blocks) if '"content":"1"' in block)
    assert ": keep-alive" in blocks[first:]
    assert parsed(response.content)[-1].data == "[DONE]"
    # Once a comment has gone out, an error can only be an event.
    service.generator.script = [0.2, Unavailable("gone")]
    events = parsed((await service.post(CHAT, stream=True)).content)
    assert events[-1].data["error"]["message"] == "gone"
