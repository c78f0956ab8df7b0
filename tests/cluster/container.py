"""One container: its command as process 1 of namespaces of its own, in a root of its own.

The image is this checkout with its Python, and what the system has in /usr. The root is read-only:
a container writes to its mounted volumes, to nothing else, and as the user that is rendered, with
no capabilities where all are dropped. Its output goes to a log.
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.network import Sandbox
from tests.cluster.objects import Object
from tests.cluster.volumes import Volume

CHECKOUT = Path(__file__).resolve().parents[2]
APP = Path("/app")
"""Where the image has this checkout."""
PREFIX = Path(sys.prefix).resolve()
PYTHON = APP / PREFIX.relative_to(CHECKOUT) if PREFIX.is_relative_to(CHECKOUT) else PREFIX
IMAGE = {
    "PATH": f"{PYTHON}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
    "PYTHONPATH": str(APP),
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
}
"""Variables that the image sets."""
IMAGE_PATHS = {
    **{path: path for path in ("/usr", "/etc/ssl", "/etc/ld.so.cache", "/etc/alternatives")},
    sys.base_prefix: sys.base_prefix,
    str(CHECKOUT): str(APP),
    **({} if PYTHON.is_relative_to(APP) else {str(PREFIX): str(PREFIX)}),
}
"""What is in it, by where it is on this machine."""
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
DEVICES = ("null", "zero", "full", "random", "urandom")
NSSWITCH = "passwd: files\\ngroup: files\\nhosts: files dns\\n"


@dataclass(frozen=True)
class Mount:
    """A volume, or a file of it, in a container."""

    volume: Volume
    path: str
    sub_path: str = ""
    is_read_only: bool = False


@dataclass
class Container:
    """A container that runs or ran."""

    name: str
    process: "subprocess.Popen[bytes]"
    user: list[str]
    env: dict[str, str]
    set_up: Path
    """A pipe that is closed inside when the command is about to be run."""
    is_killed: bool = False

    @property
    def exit_code(self) -> int | None:
        """As a container engine tells it; None: it runs."""
        code = self.process.poll()
        if code is None or code >= 0:
            # `unshare` of util-linux 2.38 ends with 1 where a signal has ended what it ran.
            return 137 if code and self.is_killed else code
        return 128 - code

    def wait_until_set_up(self) -> None:
        """Wait for what an engine does before it runs the command. Blocks."""
        pipe = os.open(self.set_up, os.O_RDONLY | os.O_NONBLOCK)
        closed = select.poll()
        closed.register(pipe, select.POLLHUP)
        while self.process.poll() is None and not closed.poll(20):
            pass
        os.close(pipe)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process 1."""
        self.is_killed = self.is_killed or number is signal.SIGKILL
        if pid := self.pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pid(self) -> int | None:
        """Its process 1 as the node sees it; None: ended."""
        number = self.process.pid
        try:
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def command_inside(self, command: list[str]) -> list[str]:
        """How to run another command in it."""
        enter = ["nsenter", "--target", str(self.pid()), "--all", "--root", "--wdns=/"]
        return [*enter, *self.user, *_with(self.env), *command]

    def memory_bytes(self) -> int:
        """The most that its process 1 has held, what is shared included."""
        try:
            lines = Path(f"/proc/{self.pid()}/status").read_text().splitlines()
        except FileNotFoundError:
            return 0
        found = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(found[0]) * 1024 if found else 0


def start(
    spec: Object,
    pod: Object,
    command: list[str],
    env: dict[str, str],
    mounts: list[Mount],
    sandbox: Sandbox,
    log: Path,
) -> Container:
    """Start one."""
    context = {**pod["spec"].get("securityContext", {}), **spec.get("securityContext", {})}
    user = _user(context)
    root = log.with_suffix(".root")
    root.mkdir(exist_ok=True)
    set_up = log.with_suffix(".pipe")
    if not set_up.exists():
        os.mkfifo(set_up)
    script = f"exec 9> {set_up}\n"
    script += _script(root, mounts, bool(context.get("readOnlyRootFilesystem")))
    script += "exec 9>&-\n"
    script += shlex.join(["exec", *user, *_with(env), *command])
    own = ["setpriv", "--pdeathsig", "KILL", *sandbox.enter]
    own += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]
    with log.open("ab") as out:
        process = subprocess.Popen(
            own, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd="/"
        )
    return Container(spec["name"], process, user, env, set_up)


def _with(env: dict[str, str]) -> list[str]:
    return ["env", "-i", *(f"{name}={value}" for name, value in env.items())]


def _user(context: Object) -> list[str]:
    user = context.get("runAsUser", 0)
    assert user or not context.get("runAsNonRoot"), "runAsNonRoot, and no runAsUser"
    command = ["setpriv", f"--reuid={user}", f"--regid={context.get('runAsGroup', 0)}"]
    groups = [*context.get("supplementalGroups", [])]
    groups += [context["fsGroup"]] if "fsGroup" in context else []
    command += [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
    if context.get("allowPrivilegeEscalation") is False:
        command += ["--no-new-privs"]
    if "ALL" in context.get("capabilities", {}).get("drop", []):
        command += ["--inh-caps=-all", "--bounding-set=-all"]
    return command


def _script(root: Path, mounts: list[Mount], is_read_only: bool) -> str:
    """Builds the root and moves into it."""
    hosts = root.parent / "hosts"
    lines = [
        "umask 022; mount --make-rprivate /",
        f"mount -t tmpfs -o mode=755,size=64m root {root}; cd {root}",
        "mkdir -p proc sys dev tmp run etc var/run home",
        "chmod 1777 tmp",
        *(f"ln -s {target} {name}" for name, target in LINKS.items()),
        "mount -t tmpfs -o mode=755,size=1m dev dev; mkdir dev/shm",
        *(f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in DEVICES),
        "mount -t tmpfs -o mode=1777,size=64m shm dev/shm",
        "ln -s /proc/self/fd dev/fd; ln -s /proc/self/fd/1 dev/stdout",
        f"printf '{NSSWITCH}' > etc/nsswitch.conf; echo 'multi on' > etc/host.conf",
        "echo root:x:0:0::/root:/bin/sh > etc/passwd; echo root:x:0: > etc/group",
        f": > etc/resolv.conf; : > etc/hosts; mount --bind -o ro {hosts} etc/hosts",
        *(_bind(*paths, is_read_only=True) for paths in _outermost(IMAGE_PATHS).items()),
        "mount -t proc -o nosuid,nodev,noexec proc proc",
        *(_mount(mount) for mount in sorted(mounts, key=lambda mount: mount.path)),
        "pivot_root . .; umount -l .; cd /",
        "mount -o remount,bind,ro /dev",
    ]
    if is_read_only:
        lines += ["mount -o remount,bind,ro /"]
    return "\n".join([*lines, ""])


def _mount(mount: Mount) -> str:
    if mount.volume.is_memory:
        size = mount.volume.size.removesuffix("i").lower() or "64m"
        return f"mkdir -p .{mount.path}; mount -t tmpfs -o mode=2777,size={size} m .{mount.path}"
    source = mount.volume.path / mount.sub_path if mount.sub_path else mount.volume.path
    return _bind(str(source), mount.path, mount.is_read_only)


def _bind(source: str, path: str, is_read_only: bool) -> str:
    if not Path(source).exists():
        return f"mkdir -p {source} .{path}; mount --bind {source} .{path}"
    make = "mkdir -p" if Path(source).is_dir() else f"mkdir -p .{Path(path).parent}; touch"
    option = "-o ro" if is_read_only else ""
    return f"{make} .{path}; mount --bind {option} {source} .{path}"


def _outermost(paths: dict[str, str]) -> dict[str, str]:
    """Without what is in another one at the same place."""
    return {
        path: inside
        for path, inside in paths.items()
        if Path(path).exists()
        and not any(
            path != other == place and Path(path).is_relative_to(other)
            for other, place in paths.items()
        )
    }
