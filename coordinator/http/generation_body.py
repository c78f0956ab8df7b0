"""What the bodies of chats and completions have in common: sampling, limits, how to answer."""

from typing import Annotated, Literal

from pydantic import FailFast, Field

from coordinator.admission import MAX_CHOICES, MAX_SESSION_ID_LENGTH
from coordinator.http.fields import ContentText, LogitBiases, StopTexts
from coordinator.http.parsing import Strict
from coordinator.http.response_format import ResponseFormatBody
from coordinator.requests import ChatMessage, GenerationRequest, Speculation
from paceline.errors import InvalidRequest


class StreamOptions(Strict):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class SpeculationBody(Strict):
    """How to speculate."""

    method: Annotated[str, Field(min_length=1)] = "auto"
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    acceptance_rule: Literal["coupled", "rejection", "block"] | None = None


class PredictionBody(Strict):
    """What the answer is expected to be like; never changes it."""

    type: Literal["content"]
    content: ContentText


class GenerationBody(Strict):
    """What chats and completions have in common."""

    model: str | None = None
    request_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")] = ""
    """Names the answer, so that a stream which broke off can be resumed. Unset: made up."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Choices to pick `n` from. Not supported: as many as are asked for is all that it may be."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: StopTexts = ()
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], FailFast()] = []
    ignore_eos: bool = False
    logit_bias: LogitBiases = ()
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    response_format: ResponseFormatBody = ResponseFormatBody(type="text")
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    prediction: PredictionBody | None = None
    speculation: SpeculationBody = SpeculationBody()
    session_id: Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID_LENGTH)] = ""
    user: str | None = None
    safety_identifier: str | None = None
    """Like `user`, who is asking, for the client's own books: it asks for nothing."""
    prompt_cache_key: str | None = None
    """Asks for nothing: equal beginnings share their KV, whatever they are called."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def with_prompt(
        self,
        new_id: str,
        prompt: str | tuple[int, ...] | tuple[ChatMessage, ...],
        max_tokens: int | None,
        num_logprobs: int | None,
        prompt_logprobs: bool = False,
    ) -> GenerationRequest:
        """The request that these parameters and a prompt make; raises InvalidRequest."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options: only allowed together with stream: true", "stream_options"
            )
        if self.best_of not in (None, self.n):
            raise InvalidRequest(
                f"best_of: is {self.best_of}, which is not supported; expected {self.n}, the value "
                "of n, or nothing",
                "best_of",
            )
        return GenerationRequest(
            request_id=self.request_id or new_id,
            prompt=prompt,
            n=self.n,
            prediction=self.prediction.content if self.prediction else "",
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            seed=None if self.seed is None else self.seed % 2**64,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logit_bias=self.logit_bias,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            num_logprobs=num_logprobs,
            prompt_logprobs=prompt_logprobs,
            speculation=Speculation(
                self.speculation.method,
                self.speculation.num_speculative_tokens,
                self.speculation.acceptance_rule or "",
            ),
            session_id=self.session_id,
            response_schema=self.response_format.to_schema(),
        )
