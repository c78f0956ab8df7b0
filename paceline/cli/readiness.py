"""Whether a process on this machine takes requests: gRPC health and `GET /ready`."""

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

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
