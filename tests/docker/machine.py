"""The services of docker/compose.yaml on a network of their own, each inside its image.

Every service has the command, the variables and the health check of the file; names lead to
127.0.0.1, so a port belongs to one service. There is no way out of that network, so that nothing
can be fetched. Leaving the context kills all.
"""

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compose_file import Service, read_services
from image_layers import Builder, Layers
from image_root import inside
from image_stages import Config, Stage

from paceline.cli.supervisor import Child, ChildSpec, Supervisor

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Of the tools that put a service inside its image."""
_ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() if sys.argv[2] else None)
request.add_header("Content-Type", "application/json")
sys.stdout.write(urllib.request.urlopen(request).read().decode())
"""


@dataclass(frozen=True)
class _Running:
    child: Child
    layers: Layers
    config: Config
    service: Service


class Machine:
    """A context manager; `folder` is for logs, volumes and mount points."""

    def __init__(self, folder: Path, builder: Builder, stages: Mapping[str, Stage]) -> None:
        self._folder = folder
        self._builder = builder
        self._stages = stages
        self._services = read_services()
        self._running: dict[str, _Running] = {}
        self._stack = contextlib.ExitStack()

    def start(self, name: str) -> None:
        """Start a service; it becomes healthy later."""
        service = self._services[name]
        layers, config = Layers(()), Config()
        if "build" in service.values:
            target = service.values["build"]["target"]
            layers, config = self._builder.build(target), self._stages[target].config
        command = [*config.entrypoint, *service.values.get("command", config.command)]
        argv = self._inside(service, layers, config, command)
        spec = ChildSpec(name, argv, {"PATH": PATH}, service.stop_grace_s)
        self._running[name] = _Running(self._supervisor.start(spec), layers, config, service)

    def wait_healthy(self, names: list[str], timeout_s: float) -> dict[str, float]:
        """Wait for their own health checks; seconds that each took."""
        took: dict[str, float] = {}

        def note(child: Child, seconds: float) -> None:
            took[child.spec.name] = seconds

        def is_healthy(name: str) -> bool:
            return self.run(name, self._running[name].service.health_command).returncode == 0

        probes = {self._running[name].child: (lambda name=name: is_healthy(name)) for name in names}
        self._supervisor.wait_ready(probes, timeout_s, note)
        return took

    def run(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command beside a service, as `docker compose exec` does."""
        found = self._running[name]
        argv = self._inside(found.service, found.layers, found.config, command)
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def ask(self, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON that the coordinator answers with, asked from within its image."""
        text = json.dumps(body) if body else ""
        said = self.run("coordinator", ["python", "-c", _ASK, url, text])
        assert said.returncode == 0, said.stderr
        answer: dict[str, Any] = json.loads(said.stdout)
        return answer

    def stop(self, name: str) -> int:
        """Tell a service to stop, give it the time of the file, and say how it ended."""
        child = self._running[name].child
        killed = self._supervisor.stop([child])
        assert killed == [], f"{name} had to be killed{child.describe_log()}"
        return int(child.process.returncode)

    def _inside(
        self, service: Service, layers: Layers, config: Config, command: list[str]
    ) -> list[str]:
        mounts = {self._hosts: "/etc/hosts"}
        for volume in service.values.get("volumes", []):
            volume_name, _, path = volume.partition(":")
            mounts[self._volume(volume_name, layers.find(path)[-1])] = path
        (tmp,) = service.values["tmpfs"]
        argv = inside(
            self._folder,
            layers.folders,
            command,
            environment={**config.environment, **service.environment},
            directory=config.directory,
            user=service.values.get("user", config.user),
            mounts=mounts,
            tmp_options=tmp.partition(":")[2],
        )
        return ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", *argv]

    def _volume(self, name: str, like: Path) -> Path:
        """A new volume has the rights of what it is put over."""
        folder = self._folder / f"volume-{name}"
        if not folder.exists():
            folder.mkdir()
            shutil.copystat(like, folder)
        return folder

    def __enter__(self) -> Self:
        self._supervisor = self._stack.enter_context(Supervisor(self._folder))
        self._hosts = self._folder / "hosts"
        names = " ".join(["localhost", *self._services])
        self._hosts.write_text(f"127.0.0.1 {names}\n")
        script = "ip link set lo up && echo up && exec sleep infinity"
        self._network = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE
        )
        self._stack.callback(self._network.wait)
        self._stack.callback(self._network.send_signal, signal.SIGKILL)
        assert self._network.stdout is not None
        assert self._network.stdout.readline() == b"up\n"
        self._stack.enter_context(self._network.stdout)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
