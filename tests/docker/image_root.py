"""Runs a command inside an image that no container engine has made.

In a mount namespace of its own a root is put together: /usr and /etc are this machine's, which
stands in for the base image, with this Python as /usr/local; over /build, /opt and /var lie the
layers of the image. That takes root and Linux. Knows nothing of Dockerfiles and services.

Invariant: nothing is seen of it outside the process that runs, but what that writes to the layer.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_BASE = ("usr", "etc")
_LAYERED = ("build", "opt", "var")
"""Where an image may have files of its own. A line that writes elsewhere fails."""
_KERNEL = ("dev", "proc", "sys")
_SHORT = ("bin", "lib", "lib64", "sbin")


def inside(
    folder: Path,
    layers: Sequence[Path],
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str = "/",
    user: str = "0",
    mounts: Mapping[Path, str] | None = None,
    tmp_options: str = "mode=1777",
    is_build: bool = False,
) -> list[str]:
    """A command that becomes `argv` inside the layers, the newest first; `folder` is for itself.

    `mounts` are put into it. Of the files only those and /tmp can be written, in a build also the
    newest layer. No privilege can be gained; a user other than 0 has none to begin with.
    """
    root = folder / "root"
    root.mkdir(exist_ok=True)
    steps = [
        *_base_image(root),
        *(step for name in _LAYERED for step in _layers(folder, root, name, layers, is_build)),
        ["mount", "-t", "tmpfs", "-o", tmp_options, "tmpfs", f"{root}/tmp"],
        ["mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", f"{root}/root"],
        *_python(root),
    ]
    for source, target in (mounts or {}).items():
        if target.startswith("/root/"):
            steps.append(["mkdir", "-p", f"{root}{target}"])
        steps.append(["mount", "--bind", str(source), f"{root}{target}"])
    steps.append(["mount", "-o", "remount,ro", str(root)])
    variables = [f"{key}={text}" for key, text in environment.items()]
    last = ["chroot", str(root), *_as_user(user, is_build), "env", "-i", "-C", directory]
    script = [*map(shlex.join, steps), f"exec {shlex.join([*last, *variables, *argv])}"]
    return ["unshare", "--mount", "sh", "-euc", "\n".join(script)]


def why_not_here() -> str:
    """What this machine lacks for that; empty: nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root of a Linux machine can put a root of files together"
    if sys.base_prefix == "/usr":
        return "this Python cannot stand in for that of the base image: it is not apart from /usr"
    with temporary_folder() as folder:
        (Path(folder) / "layer").mkdir()
        argv = inside(Path(folder), [Path(folder) / "layer"], ["true"], environment={})
        tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this machine does not let us: {tried.stderr.strip()}"


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Gone in the end, with all that was made in it."""
    return tempfile.TemporaryDirectory(prefix="images-")


def _base_image(root: Path) -> list[list[str]]:
    steps = [["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root)]]
    names = (*_BASE, *_KERNEL, *_LAYERED, "tmp", "root")
    steps.append(["mkdir", *(f"{root}/{name}" for name in names)])
    for name in filter(lambda name: Path("/", name).exists(), _SHORT):
        steps.append(["ln", "-s", f"usr/{name}", f"{root}/{name}"])
    steps += [["mount", "--rbind", f"/{name}", f"{root}/{name}"] for name in (*_BASE, *_KERNEL)]
    return steps + [["mount", "-o", "remount,bind,ro", f"{root}/{name}"] for name in _BASE]


def _python(root: Path) -> list[list[str]]:
    """At /usr/local, and where it was installed, since it may look for its library there."""
    places = [f"{root}/usr/local"]
    if Path(sys.base_prefix).parts[1] not in (*_BASE, *_LAYERED):
        places.append(f"{root}{sys.base_prefix}")
    return [
        step
        for place in places
        for step in (
            ["mkdir", "-p", place],
            ["mount", "--bind", sys.base_prefix, place],
            ["mount", "-o", "remount,bind,ro", place],
        )
    ]


def _layers(
    folder: Path, root: Path, name: str, layers: Sequence[Path], is_build: bool
) -> list[list[str]]:
    """The steps that lay the folders of this name over one another."""
    # Two, since overlayfs wants no fewer where nothing is to be written.
    empty, nothing, work = (folder / each for each in ("empty", "nothing", f"work-{name}"))
    for path in (empty, nothing, work):
        path.mkdir(exist_ok=True)
    lower = [path / name for path in (layers[1:] if is_build else layers)]
    lower = [path for path in (*lower, Path("/", name), empty, nothing) if path.is_dir()]
    options = f"lowerdir={':'.join(map(str, lower))}"
    if is_build:
        (layers[0] / name).mkdir(exist_ok=True)
        options += f",upperdir={layers[0] / name},workdir={work}"
    else:
        options += ",ro"
    return [["mount", "-t", "overlay", "overlay", "-o", options, f"{root}/{name}"]]


def _as_user(user: str, is_build: bool) -> list[str]:
    uid, _, gid = user.partition(":")
    argv = ["setpriv", "--reuid", uid, "--regid", gid or uid, "--clear-groups", "--no-new-privs"]
    return argv if is_build else [*argv, "--inh-caps=-all", "--bounding-set=-all"]
