"""Which connections NetworkPolicies let through, and which ones pods really have.

Nothing is kept from anybody here: what pods do is looked at, and compared with what policies would
allow. Knows selectors of pods and of the one namespace, and ports by name and number.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.cluster.objects import NAMESPACE, Object
from tests.cluster.pod import Pod

ESTABLISHED, LISTENS = "01", "0A"
NAMESPACE_LABELS = {"kubernetes.io/metadata.name": NAMESPACE}


class Connection(NamedTuple):
    """One that a pod has made to another."""

    caller: Pod
    called: Pod
    port: int


def connections(pods: Iterable[Pod]) -> list[Connection]:
    """Those between pods that are open now."""
    by_address = {pod.address: pod for pod in pods if pod.address and not pod.is_over}
    return [
        Connection(pod, by_address[address], port)
        for pod in by_address.values()
        for address, port in _made_by(pod)
        if address in by_address and by_address[address] is not pod
    ]


def allows(policies: Iterable[Object], seen: Connection) -> bool:
    """Whether both ends may: each as far as a policy selects it for that direction."""
    policies = list(policies)
    return _allowed(policies, "Ingress", seen.called, seen.caller, seen) and _allowed(
        policies, "Egress", seen.caller, seen.called, seen
    )


def _allowed(
    policies: list[Object], direction: str, own: Pod, other: Pod, seen: Connection
) -> bool:
    selecting = [
        policy["spec"]
        for policy in policies
        if direction in policy["spec"]["policyTypes"]
        and _meets(policy["spec"]["podSelector"], own.labels)
    ]
    peers = "from" if direction == "Ingress" else "to"
    rules = [rule for spec in selecting for rule in spec.get(direction.lower()) or []]
    return not selecting or any(
        _is_port(rule.get("ports"), seen) and _is_peer(rule.get(peers), other) for rule in rules
    )


def _is_port(ports: list[Object] | None, seen: Connection) -> bool:
    named = {
        item["name"]: item["containerPort"]
        for box in seen.called.spec["spec"]["containers"]
        for item in box.get("ports", [])
    }
    return not ports or any(
        port.get("protocol", "TCP") == "TCP" and named.get(port["port"], port["port"]) == seen.port
        for port in ports
    )


def _is_peer(peers: list[Object] | None, pod: Pod) -> bool:
    for peer in peers or []:
        assert not peer.keys() - {"podSelector", "namespaceSelector"}, f"not known here: {peer}"
    return not peers or any(
        _meets(peer.get("namespaceSelector", {}), NAMESPACE_LABELS)
        and _meets(peer.get("podSelector", {}), pod.labels)
        for peer in peers
    )


def _meets(selector: Object, labels: dict[str, str]) -> bool:
    assert not selector.keys() - {"matchLabels"}, f"not known here: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items()


def _made_by(pod: Pod) -> set[tuple[str, int]]:
    """Where its open connections go that others have not made to it."""
    assert pod.sandbox is not None
    found: set[tuple[str, int]] = set()
    listens: set[int] = set()
    rows: list[tuple[str, str]] = []
    for table in ("tcp", "tcp6"):
        text = Path(f"/proc/{pod.sandbox.process.pid}/net/{table}").read_text()
        for line in text.splitlines()[1:]:
            _, own, other, state, *_ = line.split()
            if state == LISTENS:
                listens.add(_end(own)[1])
            elif state == ESTABLISHED:
                rows.append((own, other))
    for own, other in rows:
        if _end(own)[1] not in listens:
            found.add(_end(other))
    return found


def _end(text: str) -> tuple[str, int]:
    """Address and port of one end, IPv4 in either of its forms."""
    address, _, port = text.partition(":")
    numbers = bytes.fromhex(address[-8:])[::-1]
    return ".".join(map(str, numbers)), int(port, 16)
