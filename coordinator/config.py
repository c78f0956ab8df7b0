"""Settings of the coordinator. Read in `__main__` only and passed down as arguments."""

from typing import Annotated, Literal

from pydantic import Field

from coordinator.redis_access import RedisSettings
from coordinator.worker_access import WorkerAccessSettings
from paceline.config import Count, Port
from paceline.security_settings import SecuritySettings
from paceline.workers.discovery.source_names import SourceName


class CoordinatorSettings(RedisSettings, WorkerAccessSettings, SecuritySettings):
    """Paceline coordinator: takes requests and runs the rounds between draft and target."""

    targets: Annotated[tuple[SourceName, ...], Field(min_length=1)]
    """Where the target workers are. Each entry is one worker (`host:port` or `unix:path`), all
    addresses of a name (`dns:///name:port`), or all pods of a Service
    (`kubernetes://[namespace/]service[:port]`, or `kubernetes://[namespace][:port]?selector=…` for
    the Services with these labels), which are followed as they come and go."""

    drafts: tuple[SourceName, ...] = ()
    """Where the draft workers are, written like `targets`. None: plain decoding."""

    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] = 15
    """Most drafts per round; how many are verified follows from how likely they are accepted and
    from what a wider pass costs. 15 and the target's own token make the widest pass that is
    measured at start. 0: plain decoding."""

    acceptance_rule: Literal["coupled", "rejection", "block"] = "coupled"
    """Which drafts become text, for requests that leave it open. `coupled`: the text of a seed is
    what the target alone says. `rejection` and `block` accept more at high temperatures and keep
    the law of the text, not the text."""

    max_running_requests: Count = 64
    """Requests decoded at the same time; more wait."""

    max_waiting_requests: Annotated[int, Field(ge=0)] = 256
    """Requests that wait; more are turned away with 429, since a queue this long means seconds
    to minutes of waiting already."""

    drain_seconds: Annotated[float, Field(ge=0)] = 25.0
    """How long running answers may take to end when the coordinator is told to stop. Under the 30
    seconds after which Kubernetes kills a pod."""

    http_port: Port = 8000
    """Port of the OpenAI-compatible API; 0: any free one."""

    grpc_port: Port = 50051
    """Port of `paceline.v1.CoordinatorService`; 0: any free one."""
