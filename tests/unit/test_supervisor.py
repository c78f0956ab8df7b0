"""Children that die, hang or never get ready, and a parent that is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import SOON_S, wait_until

from paceline.cli.supervisor import Child, ChildFailed, ChildSpec, Supervisor

READY = "print('ready', flush=True); import time; time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + READY


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path) as supervisor:
        yield supervisor


def script(name: str, code: str, grace_s: float = 5) -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-S", "-c", code], dict(os.environ), grace_s)


def has_printed(child: Child) -> Callable[[], bool]:
    return lambda: "ready" in child.log_path.read_text()


def ignore(child: Child, seconds: float) -> None:
    """For tests that do not ask how long it took."""


def start_ready(supervisor: Supervisor, spec: ChildSpec) -> Child:
    child = supervisor.start(spec)
    supervisor.wait_ready({child: has_printed(child)}, timeout_s=SOON_S, on_ready=ignore)
    return child


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_waits_for_all_children_and_says_how_long_each_took(supervisor: Supervisor) -> None:
    fast = supervisor.start(script("fast", READY))
    slow = supervisor.start(script("slow", "import time; time.sleep(0.5);" + READY))
    took: dict[Child, float] = {}
    probes = {child: has_printed(child) for child in (fast, slow)}
    supervisor.wait_ready(probes, timeout_s=SOON_S, on_ready=took.__setitem__)
    assert took[slow] > 0.5
    assert took[fast] <= took[slow]


def test_a_child_that_fails_at_start_is_reported_with_its_exit_code_and_its_log(
    supervisor: Supervisor,
) -> None:
    good = supervisor.start(script("good", READY))
    bad = supervisor.start(script("bad", "print('no such model: /nowhere'); raise SystemExit(3)"))
    with pytest.raises(ChildFailed) as caught:
        supervisor.wait_ready(
            {good: has_printed(good), bad: lambda: False}, timeout_s=SOON_S, on_ready=ignore
        )
    assert caught.value.message.startswith("bad ended (exit code 3); the end of ")
    assert caught.value.message.endswith("bad.log:\n    no such model: /nowhere")


def test_a_child_that_is_never_ready_is_reported_by_name(supervisor: Supervisor) -> None:
    child = supervisor.start(script("mute", "import time; time.sleep(60)"))
    with pytest.raises(ChildFailed, match=r"mute was not ready within 0\.2 s; its log .* is empty"):
        supervisor.wait_ready({child: lambda: False}, timeout_s=0.2, on_ready=ignore)


def test_only_the_end_of_a_long_log_is_shown(supervisor: Supervisor) -> None:
    child = supervisor.start(script("chatty", "for i in range(100): print('line', i)"))
    child.process.wait()
    text = child.describe_end()
    assert "line 84\n" not in text
    assert text.splitlines()[-1] == "    line 99"


def test_a_killed_child_is_found_once_and_the_signal_explained(supervisor: Supervisor) -> None:
    child = start_ready(supervisor, script("victim", READY))
    assert supervisor.find_dead() == []
    child.process.kill()
    child.process.wait()
    assert supervisor.find_dead() == [child]
    assert supervisor.find_dead() == []
    assert "victim ended (signal SIGKILL: something killed it" in child.describe_end()


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(supervisor: Supervisor) -> None:
    deaf = start_ready(supervisor, script("deaf", DEAF, grace_s=0.3))
    polite = start_ready(supervisor, script("polite", READY))
    assert supervisor.stop([deaf, polite]) == [deaf]
    assert deaf.process.returncode == -signal.SIGKILL
    assert polite.process.returncode == -signal.SIGTERM
    assert supervisor.find_dead() == []


def test_leaving_the_context_ends_children_and_grandchildren(tmp_path: Path) -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start(script("parent", code + ";" + READY))
        supervisor.wait_ready({child: has_printed(child)}, timeout_s=SOON_S, on_ready=ignore)
        grandchild = int(child.log_path.read_text().split()[0])
        assert is_running(grandchild)
    assert child.process.returncode == -signal.SIGKILL
    wait_until_gone([grandchild])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import os, sys, time
from pathlib import Path
from paceline.cli.supervisor import ChildSpec, Supervisor
supervisor = Supervisor(Path({str(tmp_path)!r}))
argv = [sys.executable, "-S", "-c", {DEAF!r}]
one, two = (supervisor.start(ChildSpec(name, argv, os.environ, 5)) for name in ("one", "two"))
print(one.process.pid, two.process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids))
