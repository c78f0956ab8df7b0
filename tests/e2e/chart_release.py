"""A release of the chart in a cluster of ours, and how to ask it from outside."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from answers import http_client
from observed import soon

from tests.chart.rendering import HELM, Manifests, render
from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.network import why_not
from tests.cluster.pod import Pod

COORDINATOR, TARGET = "paceline-coordinator", "paceline-target"
DRAFT, REDIS = "paceline-draft-default", "paceline-redis"
NO_HELM = "" if HELM else "no helm on the PATH; `make test` gets one where it can"
needs_cluster = pytest.mark.skipif(bool(NO_HELM or why_not()), reason=NO_HELM or why_not())
SPEED = 4.0
"""Probes come so much faster than rendered, so that tests wait less."""


class Release:
    """The objects of a release, and its front ends as the node reaches them."""

    def __init__(self, cluster: Cluster, manifests: Manifests) -> None:
        self.cluster = cluster
        self.manifests = manifests

    @property
    def url(self) -> str:
        return f"http://{self.cluster.address(COORDINATOR, 'http')}"

    @property
    def grpc_address(self) -> str:
        return self.cluster.address(COORDINATOR, "grpc")

    @property
    def targets(self) -> list[Pod]:
        """Ready ones."""
        return self._ready("target")

    @property
    def drafts(self) -> list[Pod]:
        """Ready ones, of all pools."""
        return self._ready("draft")

    async def status(self) -> dict[str, Any]:
        """What a coordinator says of itself."""
        async with http_client(self.url) as client:
            found: dict[str, Any] = (await client.get("/status")).json()
        return found

    async def until_seen(self, num_targets: int, num_drafts: int) -> None:
        """Wait until a coordinator has exactly so many, all ready."""

        async def sees_all() -> bool:
            workers = (await self.status())["workers"]
            roles = sorted(worker["role"] for worker in workers if worker["ready"])
            return len(workers) == len(roles) and roles == (
                ["draft"] * num_drafts + ["target"] * num_targets
            )

        await soon(sees_all, f"the coordinator sees {num_targets} targets, {num_drafts} drafts")

    async def until_recorded(self) -> None:
        """Wait until records go to Redis."""

        async def is_recorded() -> bool:
            return bool((await self.status())["session_store"] == "redis")

        await soon(is_recorded, "the coordinator uses Redis")

    def _ready(self, component: str) -> list[Pod]:
        label = "app.kubernetes.io/component"
        pods = [pod for pod in self.cluster.pods if not pod.is_over and not pod.is_terminating]
        return [pod for pod in pods if pod.is_ready and pod.labels[label] == component]


@asynccontextmanager
async def installed(
    folder: Path, values: Mapping[str, Any], files: Sequence[Path] = (), speed: float = SPEED
) -> AsyncIterator[Release]:
    """A release with these values that is complete, in a cluster of its own."""
    async with running_cluster(folder, speed) as cluster:
        release = Release(cluster, render(values, files))
        cluster.apply(release.manifests)
        await cluster.until_complete()
        yield release
