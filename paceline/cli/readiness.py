"""Whether a process on this machine takes requests, and is used: gRPC health, HTTP."""

import time

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
        self._stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(address, options))
        self._request = health_pb2.HealthCheckRequest(service=service_name)

    def __call__(self) -> bool:
        try:
            answer = self._stub.Check(self._request, timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class HttpProbe:
    """Asks a coordinator whether a request would work now."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=PROBE_TIMEOUT_S)

    def __call__(self) -> bool:
        try:
            return self._client.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def unused_drafts(api: CoordinatorApi, timeout_s: float) -> list[tuple[str, str]]:
    """Address and reason of the drafts that the coordinator does not use, after so long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            workers = api.status().get("workers", [])
        except ApiError:  # a service that has gone meanwhile is noticed by others
            return []
        unused = [w for w in workers if w["role"] == "draft" and not w["ready"]]
        if not unused or time.monotonic() >= deadline:
            return [(worker["address"], worker["reason"]) for worker in unused]
        time.sleep(0.05)
