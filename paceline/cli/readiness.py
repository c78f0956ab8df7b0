"""Whether a process on this machine takes requests, and is used: gRPC health, HTTP."""

import time
from typing import NamedTuple

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.cli.api import ApiError, CoordinatorApi

PROBE_TIMEOUT_S = 1.0


class GrpcProbe:
    """Asks one server about one of its services; keeps the channel between questions."""

    def __init__(self, address: str, service_name: str) -> None:
        # Reconnects fast: the server is expected to appear any moment.
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 50),
            ("grpc.enable_http_proxy", 0),
        ]
        self._channel = grpc.insecure_channel(address, options)
        self._stub = health_pb2_grpc.HealthStub(self._channel)
        self._request = health_pb2.HealthCheckRequest(service=service_name)

    def __call__(self) -> bool:
        try:
            answer = self._stub.Check(self._request, timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Ask no more. An open channel would say on the terminal that its server has gone."""
        self._channel.close()


class HttpProbe:
    """Asks a coordinator whether a request would work now."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=PROBE_TIMEOUT_S)

    def __call__(self) -> bool:
        try:
            return self._client.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


class UnusedParts(NamedTuple):
    """What runs, or should, and is not used by the coordinator."""

    drafts: list[tuple[str, str]]
    """Address and reason."""
    is_redis_away: bool


def unused_parts(api: CoordinatorApi, timeout_s: float) -> UnusedParts:
    """What the coordinator still does not use after so long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            status = api.status()
        except ApiError:  # a service that has gone meanwhile is noticed by others
            return UnusedParts([], False)
        workers = status.get("workers", [])
        drafts = [
            (worker["address"], worker["reason"])
            for worker in workers
            if worker["role"] == "draft" and not worker["ready"]
        ]
        unused = UnusedParts(drafts, status.get("session_store", "").startswith("redis ("))
        if not any(unused) or time.monotonic() >= deadline:
            return unused
        time.sleep(0.05)
