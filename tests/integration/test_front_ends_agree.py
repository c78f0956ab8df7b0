"""Chat and completions, whole and streamed, and gRPC say the same, for every kind of request."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from front_ends import CASES, ENDPOINTS, PROMPT_IDS, TEXT
from table_service import TableService, table_service
from worker_servers import draft_server

from coordinator.requests import FinishReason


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[TableService]:
    async with table_service(drafts=[draft_server("self"), draft_server("suffix")]) as found:
        yield found


STOPPING = {
    *("end of sequence", "a stop", "stops that overlap", "a stop too early", "a stop token"),
    *("choices and a stop", "choices to their ends", "prediction and a stop"),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_all_front_ends_say_the_same_with_and_without_drafts(
    name: str, service: TableService
) -> None:
    said = [await ask(service, CASES[name]) for ask in ENDPOINTS.values()]
    for method in ("off", "self", "suffix"):
        asked = {**CASES[name], "speculation": {"method": method}}
        said.append(await ENDPOINTS["grpc"](service, asked))
    first = said[0]
    assert all(other == first for other in said)
    assert first.usage == (len(PROMPT_IDS), sum(map(len, first.token_ids)))
    for token_ids, reason in zip(first.token_ids, first.finish_reasons, strict=True):
        assert (len(token_ids) == CASES[name]["max_tokens"]) or reason == FinishReason.STOP.value
    if name in STOPPING:
        assert "stop" in first.finish_reasons


def test_the_cases_are_what_their_names_say() -> None:
    assert TEXT.isascii()
    assert len(TEXT) == 40
