"""A client of the coordinator's OpenAI-compatible HTTP API, as far as the command line needs it.

Streams one answer at a time and measures it as its reader sees it.
"""

import json
import math
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from paceline.api_keys import bearer
from paceline.errors import PacelineError

CONNECT_TIMEOUT_S = 5.0
_STATUS_KEYS = ("ready", "model", "workers", "stats")
_JSON = {"content-type": "application/json"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(PacelineError):
    """The server cannot be reached, refused the request, or broke off in mid-answer."""


class Chunk(NamedTuple):
    """Tokens that came together."""

    seconds: float
    """Since the request was sent."""
    num_tokens: int


@dataclass(slots=True)
class Answer:
    """One answer, and how it came about. Grows while it is streamed."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    """When which of `token_ids` came; like these only if the request asks for token ids."""
    finish_reason: str = ""
    """`stop` or `length`; empty as long as it is not finished."""
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    """From sending the request to the end of the answer."""
    time_to_first_token_s: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The server's `metrics.speculative_decoding`."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer over the time of the whole request."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def said(self) -> tuple[str, list[int], str]:
        """What must not depend on drafts: one that ends sooner may be the beginning of another."""
        return self.text, self.token_ids, self.finish_reason

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "seconds": round(self.seconds, 4),
            "time_to_first_token_s": round(self.time_to_first_token_s, 4),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "speculative_decoding": dict(self.metrics),
        }


class CoordinatorApi:
    """A running coordinator. A context manager."""

    def __init__(self, url: str, api_key: str = "", tls_ca_file: str | None = None) -> None:
        """With `tls_ca_file` its certificates are trusted, in place of the usual ones."""
        url = url if "://" in url else f"http://{url}"
        self._url = url.rstrip("/").removesuffix("/v1")
        try:
            host = httpx.URL(self._url).host
            self._client = httpx.Client(
                base_url=self._url,
                headers={"authorization": bearer(api_key)} if api_key else {},
                # Between two tokens there may be any amount of time: a long prompt, a full queue.
                timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=None),
                # A proxy would not find this machine's own port.
                trust_env=host not in _LOOPBACK,
                verify=_trusting(tls_ca_file) if tls_ca_file else True,
            )
        except httpx.InvalidURL as error:
            raise ApiError(
                f"--url is {url!r}, expected one like http://host:8000: {error}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def model(self) -> str:
        """The name of the model that is served."""
        models = self._get("/v1/models")["data"]
        if not models:
            raise ApiError(f"{self._url} serves no model yet; try again when a target is ready")
        return str(models[0]["id"])

    def status(self) -> dict[str, Any]:
        """The state of the whole service."""
        found = self._get("/status")
        for key in _STATUS_KEYS:
            if key not in found:
                raise self._foreign(f"its /status has no {key!r}")
        return found

    def stream(
        self, path: str, body: Mapping[str, Any], on_text: Callable[[str], None], answer: Answer
    ) -> None:
        """Ask `/v1/chat/completions` or `/v1/completions`.

        `on_text` hears each new piece and `answer` is filled as it comes, so that an answer which
        is cut off is there up to the cut.
        """
        content = _as_json({**body, "stream": True, "stream_options": {"include_usage": True}})
        started = time.perf_counter()
        try:
            with self._client.stream("POST", path, content=content, headers=_JSON) as response:
                if response.is_error:
                    response.read()
                    raise self._refusal(response)
                for event in _events(response):
                    if "error" in event:
                        raise ApiError(f"the server broke off: {event['error']['message']}")
                    answer.seconds = time.perf_counter() - started
                    text = _take(event, answer)
                    if text:
                        on_text(text)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._foreign(f"its answer cannot be read: {error!r}") from None

    def _get(self, path: str) -> dict[str, Any]:
        try:
            response = self._client.get(path)
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise self._unreachable(error) from None
        if response.is_error:
            raise self._refusal(response)
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._foreign(f"its {path} is no JSON object")
        return found

    def _foreign(self, what: str) -> ApiError:
        return ApiError(f"{self._url} does not answer as Paceline's coordinator does: {what}")

    def _unreachable(self, error: httpx.HTTPError) -> ApiError:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            hint = "expected one that is trusted, or --tls-ca-file with its authority"
        else:
            hint = "is `paceline serve` running there?"
        return ApiError(f"no answer from {self._url} ({reason}); {hint}")

    def _refusal(self, response: httpx.Response) -> ApiError:
        try:
            reason = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = response.text[:200] or response.reason_phrase
        return ApiError(f"{self._url} answered {response.status_code}: {reason}")


def _trusting(tls_ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=tls_ca_file)
    except OSError as error:  # also of what is no PEM
        raise ApiError(
            f"--tls-ca-file is {tls_ca_file!r}, which cannot be used: {error.strerror or error}"
        ) from None


def _as_json(body: Mapping[str, Any]) -> bytes:
    """Also of texts that are not Unicode, which the server refuses by name."""
    for name, value in body.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ApiError(f"{name} is {value}, expected a finite number")
    return json.dumps(body).encode()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON documents of a server-sent event stream, up to `[DONE]`."""
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        yield json.loads(data)
    raise ApiError("the server ended the answer before it was complete")


def _take(event: Mapping[str, Any], answer: Answer) -> str:
    """Add what an event says to the answer; returns the new text."""
    if usage := event.get("usage"):
        answer.num_prompt_tokens = usage["prompt_tokens"]
        answer.num_tokens = usage["completion_tokens"]
    if metrics := (event.get("metrics") or {}).get("speculative_decoding"):
        answer.metrics = metrics
    text = ""
    for choice in event.get("choices", []):
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        new_ids = choice.get("token_ids") or []
        if (text or new_ids) and not answer.time_to_first_token_s:
            answer.time_to_first_token_s = answer.seconds
        answer.text += text
        answer.token_ids += new_ids
        if new_ids:
            answer.chunks.append(Chunk(answer.seconds, len(new_ids)))
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    return text
