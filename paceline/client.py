"""A client of the coordinator's gRPC service that survives the loss of a coordinator.

    async with Client("127.0.0.1:50051") as client:
        async for part in client.generate(GenerateRequest(prompt="Once upon", max_tokens=40)):
            print(part.text, end="")

Given several addresses it goes to the next one when a stream breaks, and resumes there behind the
tokens it has: no token is missing or doubled.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import Self

import grpc

from paceline.certificates import client_certificates
from paceline.channel import Access
from paceline.errors import NotFound, Unavailable
from paceline.grpc_errors import error_of
from paceline.v1.coordinator_pb2 import (
    FINISH_REASON_UNSPECIFIED,
    GenerateRequest,
    GenerateResponse,
    GetStatusRequest,
    GetStatusResponse,
)
from paceline.v1.coordinator_pb2_grpc import CoordinatorServiceStub

__all__ = ["Client", "GenerateRequest", "GenerateResponse"]

MAX_ATTEMPTS = 6
"""Attempts without a new token before the request fails."""
FIRST_PAUSE_S = 0.2


class Client:
    """Calls one coordinator, or any of several that share their records."""

    def __init__(self, *addresses: str, api_key: str = "", tls_ca_file: str | None = None) -> None:
        """`addresses` are `host:port` of coordinators of the same service, at least one.

        With `tls_ca_file` they are reached by TLS: a PEM file of whose certificates are trusted, or
        "" for whom gRPC trusts by itself.
        """
        tls = None if tls_ca_file is None else client_certificates("", "", tls_ca_file)
        access = Access(api_key, tls)
        self._channels = [access.open_channel(address) for address in addresses]
        self._metadata = access.metadata
        self._current = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateResponse, None]:
        """The answer in parts, the last one with its `usage`. Closing it cancels the request.

        Where a choice was complete before a stream broke, the very last part may be its last again,
        empty, to bring the usage.

        Raises `Unauthenticated`, `InvalidRequest`, `NotFound`, `Overloaded` or `Unavailable`, which
        say the server's `reason`, and the `field` or after how many seconds to try again.
        """
        first = GenerateRequest()
        first.CopyFrom(request)
        first.request_id = request.request_id or f"gen-{secrets.token_hex(12)}"
        next_request, num_failed = first, 0
        num_received = list(request.resume_from) or [0] * (request.n or 1)
        finished: set[int] = set()
        while True:
            call = self._stub().Generate(next_request, metadata=self._metadata)
            try:
                async for response in call:
                    choice = response.choice
                    is_known = choice in finished
                    num_received[choice], num_failed = response.num_committed_tokens, 0
                    if response.finish_reason != FINISH_REASON_UNSPECIFIED:
                        finished.add(choice)
                    is_last = response.HasField("usage")
                    if is_last or not is_known:
                        yield response
                    if is_last:
                        return
                raise Unavailable("the stream ended before the answer did")
            except grpc.aio.AioRpcError as failure:
                error = error_of(failure)
                is_resume = next_request is not first
                # It is there, and has not heard of a request that nobody has begun to answer.
                is_unknown = isinstance(error, NotFound) and is_resume and not any(num_received)
                num_failed += 1
                if not (isinstance(error, Unavailable) or is_unknown) or num_failed >= MAX_ATTEMPTS:
                    raise error from failure
                if is_unknown:
                    next_request = first
                    continue
                self._current += 1
                next_request = GenerateRequest(
                    request_id=first.request_id, resume_from=num_received
                )
                await asyncio.sleep(FIRST_PAUSE_S * 2**num_failed)
            finally:
                call.cancel()

    async def status(self) -> GetStatusResponse:
        """The state of the service; raises `Unavailable`."""
        try:
            response: GetStatusResponse = await self._stub().GetStatus(
                GetStatusRequest(), timeout=5, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from failure
        return response

    def _stub(self) -> CoordinatorServiceStub:
        return CoordinatorServiceStub(self._channels[self._current % len(self._channels)])
