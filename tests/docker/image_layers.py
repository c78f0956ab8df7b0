"""Makes the images of docker/Dockerfile without a container engine.

Every stage becomes a folder with what its instructions wrote: its layer. `RUN` lines are run inside
the layers, as `image_root` has it; `COPY` takes what .dockerignore lets through, or a stage has.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dockerfile
from build_context import files_below
from image_root import inside
from image_stages import ROOT, Config, Stage, flags

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_PASSED_ON = ("PIP_", *_PROXIES)
"""How this machine reaches packages."""


@dataclass(frozen=True)
class Layers:
    """The files of an image or stage."""

    folders: tuple[Path, ...]
    """The newest first."""

    @property
    def num_bytes(self) -> int:
        """Without the base image; a file counts once in each layer that has it."""
        files = (path for folder in self.folders for path in folder.rglob("*"))
        return sum(path.lstat().st_size for path in files if not path.is_dir())

    def find(self, path: str) -> list[Path]:
        """What there is in the layers under an absolute path, the oldest first."""
        found = [folder / path.lstrip("/") for folder in reversed(self.folders)]
        return [each for each in found if each.exists()]


class LineFailed(Exception):
    """A `RUN` line did not end with status 0; with the end of what it said."""


class Builder:
    """Makes stages, each once, below a folder."""

    def __init__(self, folder: Path, stages: Mapping[str, Stage]) -> None:
        self._folder = folder
        self._stages = stages
        self._built: dict[str, Layers] = {}

    def build(self, name: str) -> Layers:
        """The files of a stage; raises `LineFailed`."""
        if name not in self._built:
            stage = self._stages[name]
            below = self.build(stage.parent.name).folders if stage.parent else ()
            layers = Layers((self._folder / name / "layer", *below))
            layers.folders[0].mkdir(parents=True)
            config = stage.first_config
            for step in stage.steps:
                config = config.after(step, stage.outer_arguments)
                self._take(step, config, layers)
            self._built[name] = layers
        return self._built[name]

    def _take(self, step: dockerfile.Command, config: Config, layers: Layers) -> None:
        if step.cmd == "WORKDIR":
            _below(layers, config.directory).mkdir(parents=True, exist_ok=True)
        elif step.cmd == "COPY":
            self._copy(step, config, layers)
        elif step.cmd == "RUN":
            self._run(step, config, layers)

    def _copy(self, step: dockerfile.Command, config: Config, layers: Layers) -> None:
        *sources, last = step.value
        target = config.path(last)
        is_folder = target.endswith("/")
        assert is_folder or len(sources) == 1, step.original
        other = flags(step).get("from")
        for source in sources:
            into = _below(layers, target)
            if other:
                for found in self.build(other).find(source):
                    _copy_tree(found, into / found.name if is_folder and found.is_file() else into)
                assert self.build(other).find(source), step.original
                continue
            paths = files_below(source)
            assert paths, f"{step.original}: there is no {source}, or .dockerignore keeps it back"
            for path in paths:
                inner = Path(path).relative_to(source) if path != source else Path(path).name
                file = into / inner if is_folder or path != source else into
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, file)

    def _run(self, step: dockerfile.Command, config: Config, layers: Layers) -> None:
        passed = {key: text for key, text in os.environ.items() if key.startswith(_PASSED_ON)}
        caches = {}
        if mount := flags(step).get("mount"):
            options = dict(part.split("=") for part in mount.split(","))
            assert options == {"type": "cache", "target": "/root/.cache/pip"}, mount
            caches[_pip_cache()] = options["target"]
        argv = inside(
            self._folder,
            layers.folders,
            ["sh", "-c", step.value[0]],
            environment={"HOME": "/root", **passed, **config.variables},
            directory=config.directory,
            user=config.user,
            mounts=caches,
            is_build=True,
        )
        ran = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ran.returncode != 0:
            said = ran.stdout.decode(errors="replace")
            raise LineFailed(f"line {step.start_line}: {step.original}\n{said[-2000:]}")


def _below(layers: Layers, path: str) -> Path:
    return layers.folders[0] / path.lstrip("/")


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _pip_cache() -> Path:
    said = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    folder = Path(said.stdout.strip())
    folder.mkdir(parents=True, exist_ok=True)
    return folder
