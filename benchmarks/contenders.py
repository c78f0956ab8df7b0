"""Three ways to the same tokens: the whole stack, a bare loop over its engine, and transformers.

Each decodes greedily, takes prompts as token ids and makes exactly `num_tokens` tokens of each,
whether the model wants to end or not.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from paceline.cli.api import Answer, CoordinatorApi
from paceline.engine.model import LanguageModel
from paceline.rounds import SequenceSettings, VerifyRound
from paceline.token_log import TokenLog
from target_service.verifier import Verifier, VerifierLimits

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Run:
    """What came out, and when."""

    token_ids: list[list[int]]
    """For each prompt."""
    seconds: float
    """From the start to the last token of all."""
    time_to_first_token_s: float
    """Of the first prompt."""
    time_per_token_s: float
    """Of the first prompt: (last - first) / (tokens - 1)."""

    @property
    def tokens_per_s(self) -> float:
        """All tokens over the whole time."""
        return sum(map(len, self.token_ids)) / self.seconds


class Stack:
    """A running service, asked over HTTP by as many clients as there are prompts."""

    def __init__(self, api: CoordinatorApi) -> None:
        self._api = api
        self._model = api.model()

    def run(
        self,
        prompts: Sequence[Prompt],
        num_tokens: int,
        speculation: dict[str, Any] | None = None,
    ) -> Run:
        """Without `speculation`, the parameter of that name, decoding is plain."""
        body = {
            "model": self._model,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
            "speculation": speculation or {"method": "off"},
        }

        def ask(prompt: Prompt) -> Answer:
            answer = Answer()
            request = body | {"prompt": list(prompt)}
            self._api.stream("/v1/completions", request, lambda text: None, answer)
            return answer

        with ThreadPoolExecutor(len(prompts)) as clients:
            started = perf_counter()
            answers = list(clients.map(ask, prompts))
            seconds = perf_counter() - started
        first, last = answers[0].chunks[0].seconds, answers[0].chunks[-1].seconds
        token_ids = [answer.token_ids for answer in answers]
        return Run(token_ids, seconds, first, _per_token_s(first, last, num_tokens))


class BareLoop:
    """The engine's model and the verifier in this process, without any service around them.

    Runs on a thread beside the one that loaded the model, as in a target. OpenMP then counts more
    threads than cores and hardly spins; on the loading thread it spins for milliseconds, and the
    comparison would be one of these two ways to wait.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._verifier = Verifier(model, VerifierLimits())
        self._num_runs = 0

    def run(self, prompts: Sequence[Prompt], num_tokens: int) -> Run:
        """All prompts at the same time."""
        with ThreadPoolExecutor(1) as device:
            return device.submit(self._run, prompts, num_tokens).result()

    def _run(self, prompts: Sequence[Prompt], num_tokens: int) -> Run:
        self._num_runs += 1
        started = perf_counter()
        token_ids: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            sequence_id = f"{self._num_runs}-{number}"
            token_ids[sequence_id] = []
            span = TokenLog.of(prompt).span(0)
            settings = SequenceSettings(max_length=len(prompt) + num_tokens)
            round = VerifyRound(sequence_id, 1, span, max_new_tokens=num_tokens, settings=settings)
            assert self._verifier.accept(round) is None
        first = token_ids[f"{self._num_runs}-0"]
        times: list[float] = []
        while self._verifier.has_work:
            for result in self._verifier.step() or ():
                token_ids[result.sequence_id].extend(result.token_ids)
            if first and len(times) < num_tokens:
                times.append(perf_counter() - started)
        seconds = perf_counter() - started
        for sequence_id in token_ids:
            self._verifier.close(sequence_id)
        per_token_s = _per_token_s(times[0], times[-1], num_tokens)
        return Run(list(token_ids.values()), seconds, times[0], per_token_s)


class TransformersGenerate:
    """`generate` as it comes."""

    def __init__(self, module: PreTrainedModel) -> None:
        assert isinstance(module, GenerationMixin), "a causal language model can generate"
        self._generate = module.generate
        # Without these there is no end before the last token wanted.
        module.generation_config.eos_token_id = None
        module.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def run(self, prompt: Prompt, num_tokens: int) -> Run:
        """One prompt."""
        ids = torch.tensor([list(prompt)])
        clock = _Clock()
        output = self._generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            streamer=clock,
        )
        new = output[0, len(prompt) :].tolist()
        first, last = clock.times_s[0], clock.times_s[-1]
        return Run([new], last, first, _per_token_s(first, last, num_tokens))


class _Clock(BaseStreamer):
    """Notes when each token came."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._has_prompt = False
        self.times_s: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """The prompt comes first, then each token."""
        if self._has_prompt:
            self.times_s.append(perf_counter() - self._started)
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is left to do."""


def _per_token_s(first_s: float, last_s: float, num_tokens: int) -> float:
    return (last_s - first_s) / (num_tokens - 1)
