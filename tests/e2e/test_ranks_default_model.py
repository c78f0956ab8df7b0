"""Three processes share the default model: drafts change nothing, and one process says the same."""

from collections.abc import Iterator

import numpy as np
import pytest
from answers import OFF, Body, ask_all, check_equal
from engine_runs import fresh_rows
from prompts import read_prompts
from serve_process import ServeProcess

from paceline.client import Client, GenerateRequest
from paceline.engine.default_model import DEFAULT_MODEL
from paceline.engine.loading import load_model
from paceline.engine.transformer import TransformerModel
from paceline.v1.coordinator_pb2 import TokenIds

pytestmark = pytest.mark.timeout(900)

NUM_CLIENTS = 8
NUM_TOKENS = 12
TEXT = [(7 * i * i + 3) % 49152 for i in range(60)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """With the head that comes with the model, fed by rank 0."""
    options = ("--tensor-parallel-size", "3", "--kv-cache-tokens", "16384")
    with ServeProcess(*options, run_folder=tmp_path_factory.mktemp("serve")) as serve:
        serve.wait_ready()
        yield serve


def bodies(temperature: float) -> list[Body]:
    return [
        {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "seed": seed,
            "max_tokens": NUM_TOKENS,
        }
        for seed, prompt in enumerate(read_prompts(NUM_CLIENTS))
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_eight_clients_get_the_same_tokens_with_drafts_and_without(
    service: ServeProcess, temperature: float
) -> None:
    asked = bodies(temperature)
    plain = await ask_all(service, [{**body, "speculation": OFF} for body in asked], concurrency=3)
    # A number that is named is waited for, however slow ranks on few cores are.
    speculation = {"method": "hybrid", "num_speculative_tokens": 4}
    answers = await ask_all(
        service, [{**body, "speculation": speculation} for body in asked], NUM_CLIENTS
    )
    for number, (answer, expected) in enumerate(zip(answers, plain, strict=True)):
        check_equal(answer, expected, f"of prompt {number} at {temperature}")
    assert sum(answer.speculation["num_accepted_draft_tokens"] for answer in answers) > 0


async def test_one_process_that_holds_the_whole_model_agrees_to_a_thousandth(
    service: ServeProcess,
) -> None:
    request = GenerateRequest(
        prompt_token_ids=TokenIds(token_ids=TEXT),
        prompt_logprobs=True,
        num_logprobs=0,
        max_tokens=1,
    )
    async with Client(service.grpc_address) as client:
        responses = [response async for response in client.generate(request)]
    said = [item.logprob for response in responses for item in response.prompt_logprobs]
    loaded = load_model(DEFAULT_MODEL, dtype="float32", device="cpu")
    whole = TransformerModel(loaded.module, loaded.vocab_size, 1024, 1024)
    rows = fresh_rows(whole, TEXT)[:-1].astype(np.float64)
    logprobs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    expected = logprobs[np.arange(len(rows)), TEXT[1:]]
    # Nothing is said of the first token.
    found = np.array(said[-len(expected) :])
    assert len(said) - len(expected) in (0, 1)
    assert 0 < np.abs(found - expected).max() < 1e-3
