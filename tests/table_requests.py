"""Requests to a coordinator of the table model, and what the model says to them by itself."""

from itertools import count

from plain_text import plain_text
from worker_servers import LAW

from coordinator.requests import GenerationRequest, Speculation
from paceline.engine.table_model import BOS_ID, EOS_ID
from paceline.rounds import SequenceSettings

PROMPT = "the rain in the rain in"
_numbers = count()


def request(
    method: str = "auto",
    num_speculative_tokens: int | None = None,
    *,
    prompt: str = PROMPT,
    max_tokens: int = 60,
    temperature: float = 0.0,
    seed: int = 5,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{next(_numbers)}",
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=True,
        speculation=Speculation(method, num_speculative_tokens),
    )


def expected(asked: GenerationRequest) -> list[int]:
    """What the table model says to a request by itself."""
    assert isinstance(asked.prompt, str)
    assert asked.max_tokens is not None
    assert asked.seed is not None
    prompt = [BOS_ID, *asked.prompt.encode()]
    settings = SequenceSettings(
        max_length=len(prompt) + asked.max_tokens,
        temperature=asked.temperature,
        seed=asked.seed,
        stop_token_ids=() if asked.ignore_eos else (EOS_ID,),
    )
    return plain_text(LAW, prompt, settings)
