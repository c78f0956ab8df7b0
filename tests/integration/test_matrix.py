"""What a request may ask for, with every drafter, rule and way to ask.

Under the rule `coupled`, and greedily under all, the answer is the one without speculation. The
other rules say another text each time; then the answer must be what was asked for. Every value of
one factor meets every value of each other; *long*: all combinations.
"""

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from front_ends import CASES, ENDPOINTS, PROMPT_IDS, Said
from pairwise import pairwise_cover
from real_tokenizers import table_tokenizer
from table_service import TableService, table_service
from worker_servers import LAW, draft_server

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
FEATURES: dict[str, dict[str, Any]] = {
    **CASES,
    "json": {"temperature": 0.9, "seed": 4, "max_tokens": 99, "response_format": FORMAT},
    "greedy json": {"temperature": 0, "max_tokens": 99, "response_format": FORMAT},
}
FACTORS: dict[str, tuple[str, ...]] = {
    "feature": tuple(FEATURES),
    "drafter": ("draft-model", "suffix", "hybrid", "self", "trees", "auto"),
    "rule": ("coupled", "rejection", "block"),
    "endpoint": tuple(ENDPOINTS),
}
COVER = pairwise_cover(*FACTORS.values())
ALL = [*itertools.product(*FACTORS.values())]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[TableService]:
    drafts = [
        draft_server("draft-model", replace(LAW, disagreement=0.3)),
        draft_server("suffix"),
        draft_server("hybrid", replace(LAW, disagreement=0.3)),
        draft_server("self"),
        draft_server("trees"),
    ]
    async with table_service(drafts=drafts) as found:
        yield found


def check_is_what_was_asked_for(said: Said, body: dict[str, Any]) -> None:
    """What holds for every text, whichever it is."""
    assert len(said.texts) == body.get("n", 1)
    assert said.usage == (len(PROMPT_IDS), sum(map(len, said.token_ids)))
    for text, token_ids, reason, logprobs in zip(
        said.texts, said.token_ids, said.finish_reasons, said.logprobs, strict=True
    ):
        assert len(logprobs) == ("num_logprobs" in body) * len(token_ids)
        assert all(logprob <= 0 for logprob in logprobs)
        assert body.get("min_tokens", 1) <= len(token_ids) <= body["max_tokens"]
        assert reason == "stop" or len(token_ids) == body["max_tokens"]
        whole = table_tokenizer().decode(token_ids)
        assert whole.startswith(text.rstrip("\ufffd"))
        for stop in body.get("stop", ()):
            assert stop not in text[body.get("min_tokens", 0) :]
        for token_id, bias in body.get("logit_bias", {}).items():
            assert bias > -100 or int(token_id) not in token_ids
        if "response_format" in body and reason == "stop":
            assert [*json.loads(text)] == ["a"]


async def check(
    service: TableService, feature: str, drafter: str, rule: str, endpoint: str
) -> None:
    body = FEATURES[feature]
    ask = ENDPOINTS[endpoint]
    speculation = {"method": drafter, "acceptance_rule": rule}
    said = await ask(service, {**body, "speculation": speculation})
    check_is_what_was_asked_for(said, body)
    if rule == "coupled" or body["temperature"] == 0:
        assert said == await ask(service, {**body, "speculation": {"method": "off"}})


@pytest.mark.parametrize(tuple(FACTORS), COVER)
async def test_every_two_values_together(
    service: TableService, feature: str, drafter: str, rule: str, endpoint: str
) -> None:
    await check(service, feature, drafter, rule, endpoint)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("feature", FEATURES)
async def test_all_values_together(service: TableService, feature: str) -> None:
    for combination in ALL:
        if combination[0] == feature:
            await check(service, *combination)
