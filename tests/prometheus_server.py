"""A real Prometheus that scrapes what a test names, and answers its questions.

Debian's package has it; `make setup` installs that where it may. Without one, tests skip.
"""

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
from waiting import SOON_S

Config = dict[str, Any]

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus and promtool on the PATH: `apt-get install prometheus`, or `make test` "
    "as root on Debian",
)


def promtool(*arguments: str | Path) -> None:
    """Run it; fails with what it says."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def static_jobs(jobs: Mapping[str, Sequence[str]]) -> list[Config]:
    """Scrape configurations of jobs: names to addresses (`host:port`) that serve `/metrics`."""
    return [
        {
            "job_name": job,
            "static_configs": [
                # As Kubernetes' discovery would name them.
                {"targets": [address], "labels": {"namespace": "test", "pod": f"{job}-{n}"}}
                for n, address in enumerate(addresses)
            ],
        }
        for job, addresses in jobs.items()
    ]


class ManagedPrometheus:
    """A context manager: the server runs inside, scrapes every second, and is gone behind it."""

    def __init__(
        self, scrape_configs: Sequence[Config], rules: Sequence[Path] = (), pace_s: int = 1
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="prometheus-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": f"{pace_s}s", "evaluation_interval": f"{pace_s}s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": scrape_configs,
        }
        # JSON is YAML.
        (self._directory / "prometheus.yml").write_text(json.dumps(config))
        self._argv = [
            "prometheus",
            f"--config.file={self._directory}/prometheus.yml",
            f"--storage.tsdb.path={self._directory}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            "--log.level=error",
        ]
        self._client = httpx.Client(
            base_url=self.url, trust_env=False, verify=False, timeout=SOON_S
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now; fails where Prometheus cannot read it."""
        return self._get("/api/v1/query", query=expression)["result"]  # type: ignore[no-any-return]

    def range(self, expression: str, start: float, end: float, step: float) -> list[Any]:
        """The series of an expression over time."""
        found = self._get("/api/v1/query_range", query=expression, start=start, end=end, step=step)
        return found["result"]  # type: ignore[no-any-return]

    def _get(self, path: str, **parameters: Any) -> Any:
        response = self._client.get(path, params=parameters)
        assert response.is_success, f"{parameters}: {response.text}"
        return response.json()["data"]

    def _is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv)
        deadline = time.monotonic() + SOON_S
        while not self._is_ready():
            assert self._process.poll() is None, "Prometheus ended at its start"
            assert time.monotonic() < deadline, "Prometheus did not start in time"
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
