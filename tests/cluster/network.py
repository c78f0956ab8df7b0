"""The network of a cluster: a bridge on this machine, and a namespace with an address for each pod.

Pods bind 0.0.0.0 with the ports that are rendered, as nothing of one is seen in another. This
machine is the node: its processes reach pods by their addresses, and pods reach it. Addresses of
Services are all in one more namespace, that of the proxies. Knows nothing of Kubernetes' objects.
Needs root and iproute2; whatever becomes of this process, nothing is left.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000
PREFIX = "pcl"
TOOLS = ("ip", "nsenter", "pivot_root", "setpriv", "unshare")
_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def why_not() -> str:
    """What keeps this machine from having such a network; empty: nothing."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        return f"no {', '.join(missing)} on the PATH"
    try:
        with Network():
            return ""
    except OSError as error:
        return f"no network namespaces here: {error}"


@dataclass(frozen=True)
class Sandbox:
    """What the containers of a pod share: network, host name, and shared memory between processes.

    It lives as long as the process that holds it, as with the pause container of a real node.
    """

    address: str
    process: "subprocess.Popen[bytes]"

    @property
    def enter(self) -> list[str]:
        """The beginning of a command that is to run inside."""
        return ["nsenter", "--target", str(self.process.pid), "--net", "--ipc", "--uts"]

    def close(self) -> None:
        """The interface goes with the namespace."""
        self.process.kill()
        self.process.wait()


class Network:
    """A context manager. Its addresses: the node's is .1, pods' begin at .2, Services' at .192."""

    def __init__(self) -> None:
        self.bridge = f"{PREFIX}{os.getpid()}n{next(_numbers)}"
        # Clusters of several processes share the machine; one in 50,000 pairs of them collides.
        self._subnet = f"10.{random.randrange(20, 220)}.{random.randrange(256)}"
        self._pods = itertools.count(2)
        self._services = itertools.count(193)
        self.node = f"{self._subnet}.1"

    def __enter__(self) -> "Network":
        _remove_stale()
        _ip(
            f"link add {self.bridge} type bridge",
            f"addr add {self.node}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        )
        self.proxies = self.sandbox("proxies")
        _ip(f"route add local {self._subnet}.192/26 dev lo", prefix=self.proxies.enter)
        return self

    def __exit__(self, *_: object) -> None:
        self.proxies.close()
        _ip(f"link del {self.bridge}")

    def service_address(self) -> str:
        """A new one."""
        return f"{self._subnet}.{_at_most(255, next(self._services))}"

    def sandbox(self, name: str) -> Sandbox:
        """A namespace of its own with an address of its own."""
        address = f"{self._subnet}.{_at_most(191, next(self._pods))}"
        # Goes with this process, and takes everything in it along.
        held = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--ipc", "--uts"]
        process = subprocess.Popen(
            [*held, "sh", "-c", f"hostname {name} && echo && exec sleep infinity"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        with process.stdout as told:
            told.read(1)
        sandbox = Sandbox(address, process)
        link = f"{PREFIX}{os.getpid()}v{next(_numbers)}"
        try:
            _ip(
                f"link add {link} type veth peer name eth0 netns {process.pid}",
                f"link set {link} master {self.bridge} up",
            )
            _ip(
                "link set lo up",
                f"addr add {address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self.node}",
                prefix=sandbox.enter,
            )
        except BaseException:
            sandbox.close()
            raise
        return sandbox


@contextlib.contextmanager
def inside(sandbox: Sandbox | None) -> Iterator[None]:
    """Sockets that are made here are those of the pod; None: of the node. Must not await."""
    if sandbox is None:
        yield
        return
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{sandbox.process.pid}/ns/net") as to:
        _enter(to.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def open_socket(sandbox: Sandbox | None) -> socket.socket:
    """A TCP socket of a pod, or of the node, that does not block."""
    with inside(sandbox):
        opened = socket.socket()
    opened.setblocking(False)
    return opened


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*commands: str, prefix: list[str] | None = None) -> None:
    lines = "\n".join(commands)
    command = [*(prefix or []), "ip", "-batch", "-"]
    done = subprocess.run(command, input=lines, text=True, check=False, capture_output=True)
    if done.returncode:
        raise OSError(f"{commands}: {done.stderr}")


def _at_most(limit: int, number: int) -> int:
    assert number < limit, "the subnet has no address left"
    return number


def _remove_stale() -> None:
    """Bridges of processes that did not live to remove them."""
    for name in os.listdir("/sys/class/net"):
        if (found := re.fullmatch(rf"{PREFIX}(\d+)n\d+", name)) and not os.path.exists(
            f"/proc/{found[1]}"
        ):
            with contextlib.suppress(OSError):
                _ip(f"link del {name}")
