"""The caller's end of a stream: what travels together, what is dropped, who is told of its end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from waiting import NEVER_S, until

from paceline.rounds import TokenSpan, VerifyResult, VerifyRound, WorkerLoad
from paceline.workers import round_client
from paceline.workers.round_client import RoundBytes, RoundClient, WorkerLost

SPAN = TokenSpan(0, 0, ())


class Message(tuple[str, int]):
    """A round as it travels."""

    def ByteSize(self) -> int:
        return 100


class Answer:
    """A result as it travels; only what is counted is asked for its size."""

    def __init__(self, result: VerifyResult, num_bytes: int | None = None) -> None:
        self._result = result
        self._num_bytes = num_bytes

    def taken(self) -> VerifyResult:
        return self._result

    def ByteSize(self) -> int:
        assert self._num_bytes is not None
        return self._num_bytes


class Stream:
    """A call whose answers the test gives, and whose messages it sees."""

    def __init__(self) -> None:
        self.messages: list[tuple[list[Any], list[str]]] = []
        self.answers: asyncio.Queue[VerifyResult | Answer | None] = asyncio.Queue()
        self.write_error: Exception | None = None

    async def write(self, message: tuple[list[Any], list[str]]) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.messages.append(message)

    def cancel(self) -> None:
        """Nothing to do."""

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> tuple[list[Answer], WorkerLoad]:
        answer = await self.answers.get()
        if answer is None:
            raise StopAsyncIteration
        messages = [answer if isinstance(answer, Answer) else Answer(answer)]
        return messages, WorkerLoad(num_sequences=3)


def encoded(round: VerifyRound) -> Message:
    if round.max_new_tokens < 0:
        raise ValueError("cannot be sent")
    return Message((round.sequence_id, round.round))


@pytest.fixture
async def stream() -> Stream:
    return Stream()


@pytest.fixture
async def client(stream: Stream) -> AsyncGenerator[RoundClient[VerifyRound, VerifyResult], None]:
    call: Any = stream
    client = RoundClient(
        call, encoded, Answer.taken, lambda *message: message, lambda answer: answer
    )
    task = asyncio.create_task(client.run(lambda: None))
    yield client
    task.cancel()
    with suppress(asyncio.CancelledError, WorkerLost):
        await task


Client = RoundClient[VerifyRound, VerifyResult]


def asked(client: Client, sequence_id: str, round: int = 1) -> asyncio.Task[VerifyResult]:
    async def first_result() -> VerifyResult:
        async with aclosing(client.results(VerifyRound(sequence_id, round, SPAN))) as results:
            return await anext(results)

    return asyncio.create_task(first_result())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_rounds_of_one_tick_travel_in_one_message(client: Client, stream: Stream) -> None:
    tasks = [asked(client, id) for id in "abc"]
    await settle()
    assert stream.messages == [([("a", 1), ("b", 1), ("c", 1)], [])]
    for id in "cab":
        stream.answers.put_nowait(VerifyResult(id, 1, start=ord(id)))
    assert [(await task).start for task in tasks] == [97, 98, 99]
    assert client.load.num_sequences == 3


async def test_results_of_other_rounds_and_sequences_are_dropped(
    client: Client, stream: Stream
) -> None:
    task = asked(client, "a", round=7)
    await settle()
    for result in (VerifyResult("a", 6), VerifyResult("b", 7), VerifyResult("a", 7, start=5)):
        stream.answers.put_nowait(result)
    assert (await task).start == 5


async def test_the_messages_of_a_round_are_counted_for_who_wants_to_know(
    client: Client, stream: Stream
) -> None:
    counted = RoundBytes()
    other = asked(client, "b")
    async with aclosing(client.results(VerifyRound("a", 7, SPAN), counted)) as results:
        for answer in (
            Answer(VerifyResult("a", 7, start=1), 20),
            Answer(VerifyResult("a", 6), 1000),
            Answer(VerifyResult("b", 1)),
            Answer(VerifyResult("a", 7, start=2), 30),
        ):
            stream.answers.put_nowait(answer)
        assert [(await anext(results)).start for _ in range(2)] == [1, 2]
    await other
    assert counted == RoundBytes(sent=100, received=50)


async def test_a_worker_that_owes_answers_and_says_nothing_is_silent(
    client: Client, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_client, "SILENT_S", -1.0)
    assert not client.is_silent, "nothing has been asked"
    given_up, other = asked(client, "a"), asked(client, "b")
    await settle()
    assert client.is_silent
    stream.answers.put_nowait(VerifyResult("b", 1))
    await other
    assert client.is_silent, "it still owes the other one"
    given_up.cancel()
    client.close_sequence("a")
    await settle()
    assert client.is_silent, "to give up is no answer"
    stream.answers.put_nowait(VerifyResult("a", 1))
    await until(lambda: not client.is_silent)
    answered_in_time = asked(client, "c")
    monkeypatch.setattr(round_client, "SILENT_S", NEVER_S)
    await settle()
    assert not client.is_silent
    stream.answers.put_nowait(VerifyResult("c", 1))
    await answered_in_time


async def test_a_round_that_has_not_gone_out_does_not_outlive_its_sequence(
    client: Client, stream: Stream
) -> None:
    task = asked(client, "a")
    await asyncio.sleep(0)
    task.cancel()
    client.close_sequence("a")
    await settle()
    assert stream.messages == [([], ["a"])]


async def test_a_sequence_can_end_and_begin_again_in_one_message(
    client: Client, stream: Stream
) -> None:
    task = asked(client, "a", round=2)
    stream.answers.put_nowait(VerifyResult("a", 2))
    client.close_sequence("a")
    await task
    assert stream.messages == [([("a", 2)], ["a"])]


async def test_a_round_that_cannot_be_encoded_harms_only_its_own_sequence(
    client: Client, stream: Stream
) -> None:
    bad = VerifyRound("a", 1, SPAN, max_new_tokens=-1)
    with pytest.raises(ValueError, match="cannot be sent"):
        await anext(client.results(bad))
    task = asked(client, "b")
    await settle()
    assert stream.messages == [([("b", 1)], [])]
    stream.answers.put_nowait(VerifyResult("b", 1))
    await task


@pytest.mark.parametrize("way", ["ends", "cannot be written to"])
async def test_everyone_who_waits_is_told_when_the_stream(
    way: str, client: Client, stream: Stream
) -> None:
    tasks = [asked(client, id) for id in "ab"]
    await settle()
    if way == "ends":
        stream.answers.put_nowait(None)
    else:
        stream.write_error = asyncio.InvalidStateError("the call is over")
        client.close_sequence("z")
    for task in tasks:
        with pytest.raises(WorkerLost):
            await task
    with pytest.raises(WorkerLost):
        await asked(client, "c")
