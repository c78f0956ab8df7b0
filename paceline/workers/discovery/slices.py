"""What EndpointSlices say, as endpoints: a pure function of plain JSON objects.

A pod may be in several slices (while the controller moves it, once for each address family, once
for each Service that picks it) and is one worker all the same: its uid tells. New sequences go to
pods that are `ready` and not `terminating`; all others that are listed keep what they have. An
unset condition reads as the API says: ready, serving, not terminating.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from paceline.addresses import with_port
from paceline.workers.discovery.endpoint import Endpoint

DEFAULT_PORT_NAME = "grpc"
TERMINATING = "its pod is terminating"
NOT_READY = "its pod is not ready"

Slice = Mapping[str, Any]


class Found(NamedTuple):
    """The endpoints of some slices."""

    endpoints: tuple[Endpoint, ...]
    """One for each pod and address, in the order of their addresses."""
    problem: str
    """Why some are missing; empty when none is."""


class _Candidate(NamedTuple):
    """What one slice says of one pod."""

    uid: str
    address: str
    is_ready: bool
    is_terminating: bool


def endpoints_of(slices: Iterable[Slice], port: str, known: Iterable[Endpoint] = ()) -> Found:
    """Endpoints of all slices. `port` as in `KubernetesSource`.

    `known` are those of the time before: a pod with several addresses stays at the one in use.
    """
    candidates: list[_Candidate] = []
    problems: set[str] = set()
    for slice in slices:
        number = _port_number(slice, port)
        if number is None:
            problems.add(_no_port(slice, port))
        else:
            candidates.extend(_candidates(slice, number))
    in_use = {endpoint.uid: endpoint.address for endpoint in known if endpoint.uid}
    pods: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        pods.setdefault(candidate.uid or candidate.address, []).append(candidate)
    merged = [_merged(pod, in_use) for pod in pods.values()]
    return Found(_one_per_address(merged), "; ".join(sorted(problems)))


def _port_number(slice: Slice, port: str) -> int | None:
    if port.isdigit():
        return int(port)
    ports = [p for p in slice.get("ports") or () if p.get("port") and _is_tcp(p)]
    named = [p["port"] for p in ports if (p.get("name") or "") == (port or DEFAULT_PORT_NAME)]
    if named:
        return int(named[0])
    return int(ports[0]["port"]) if not port and len(ports) == 1 else None


def _is_tcp(port: Mapping[str, Any]) -> bool:
    return (port.get("protocol") or "TCP") == "TCP"


def _no_port(slice: Slice, port: str) -> str:
    name = (slice.get("metadata") or {}).get("name", "?")
    names = [p.get("name") or str(p.get("port")) for p in slice.get("ports") or ()]
    expected = f"one named {port!r}" if port else f"one named {DEFAULT_PORT_NAME!r}, or only one"
    return f"the EndpointSlice {name} has the ports [{', '.join(names)}]; expected {expected}"


def _candidates(slice: Slice, port: int) -> Iterable[_Candidate]:
    for endpoint in slice.get("endpoints") or ():
        addresses = endpoint.get("addresses")
        if not addresses:
            continue
        conditions = endpoint.get("conditions") or {}
        yield _Candidate(
            uid=(endpoint.get("targetRef") or {}).get("uid") or "",
            address=with_port(addresses[0], port),  # several of one endpoint are the same
            is_ready=conditions.get("ready") is not False,
            is_terminating=conditions.get("terminating") is True,
        )


def _merged(pod: list[_Candidate], in_use: Mapping[str, str]) -> Endpoint:
    """One endpoint of all that is said of a pod.

    Slices of one pod disagree only while the controller writes them. It never stops terminating,
    so one that says so is right; otherwise one that says ready will do.
    """
    addresses = {candidate.address for candidate in pod}
    uid = pod[0].uid
    address = in_use.get(uid, "")
    if address not in addresses:
        address = min(addresses, key=lambda text: (text.startswith("["), text))
    closed = ""
    if any(candidate.is_terminating for candidate in pod):
        closed = TERMINATING
    elif not any(candidate.is_ready for candidate in pod):
        closed = NOT_READY
    return Endpoint(address, uid, closed)


def _one_per_address(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """An address belongs to one pod: where an old slice still lists the last one, to the open."""
    ranked = sorted(endpoints, key=lambda e: (e.address, e.closed != "", e.uid))
    first: dict[str, Endpoint] = {}
    for endpoint in ranked:
        first.setdefault(endpoint.address, endpoint)
    return tuple(first.values())
