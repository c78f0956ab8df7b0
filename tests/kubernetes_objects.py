"""EndpointSlices as Kubernetes keeps them: objects, versions, history, selectors."""

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
GRPC = ({"name": "grpc", "port": 50051, "protocol": "TCP"},)
_uids = itertools.count(1)


def fresh_uid() -> str:
    """The uid of a new pod."""
    return f"uid-{next(_uids)}"


def endpoint(
    *addresses: str,
    uid: str | None = None,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> Object:
    """One pod in a slice; conditions that are None are left unset."""
    named = (("ready", ready), ("serving", serving), ("terminating", terminating))
    conditions = {name: value for name, value in named if value is not None}
    found: Object = {"addresses": list(addresses), "conditions": conditions}
    if uid is not None:
        found["targetRef"] = {"kind": "Pod", "namespace": "default", "name": uid, "uid": uid}
    return found


def endpoint_slice(
    name: str,
    endpoints: Iterable[Object],
    *,
    service: str = "draft",
    namespace: str = "default",
    ports: Iterable[Object] = GRPC,
    labels: dict[str, str] | None = None,
) -> Object:
    """A slice of a Service, whose labels it has."""
    endpoints = list(endpoints)
    is_ipv6 = any(":" in address for e in endpoints for address in e["addresses"])
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service, **(labels or {})},
        },
        "addressType": "IPv6" if is_ipv6 else "IPv4",
        "endpoints": endpoints,
        "ports": list(ports),
    }


@dataclass(frozen=True)
class Change:
    """What one version did."""

    version: int
    before: Object | None
    after: Object | None

    def event(self, matches: Callable[[Object], bool]) -> Object | None:
        """As somebody sees it who watches what `matches`."""
        was = self.before is not None and matches(self.before)
        if self.after is not None and matches(self.after):
            return {"type": "MODIFIED" if was else "ADDED", "object": self.after}
        if not was:
            return None
        assert self.before is not None
        gone = copy.deepcopy(self.before)
        gone["metadata"]["resourceVersion"] = str(self.version)
        return {"type": "DELETED", "object": gone}


class Objects:
    """All slices, and how they came to be."""

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = self.version
        """Watches from before this version are too old."""
        self._now: dict[tuple[str, str], Object] = {}
        self._history: list[Change] = []

    def put(self, found: Object) -> Change:
        """Create or replace."""
        key = found["metadata"]["namespace"], found["metadata"]["name"]
        self.version += 1
        after = copy.deepcopy(found)
        after["metadata"]["resourceVersion"] = str(self.version)
        return self._changed(Change(self.version, self._now.get(key), after), key)

    def delete(self, name: str, namespace: str) -> Change:
        """Take one away; it must be there."""
        key = namespace, name
        self.version += 1
        return self._changed(Change(self.version, self._now[key], None), key)

    def matching(self, matches: Callable[[Object], bool]) -> list[Object]:
        """What there is now."""
        return [found for found in self._now.values() if matches(found)]

    def since(self, version: int) -> Iterator[Change]:
        """All that came after a version."""
        return (change for change in self._history if change.version > version)

    def compact(self) -> None:
        """Forget how it came to be."""
        self._history.clear()
        self.version += 1
        self.oldest = self.version

    def _changed(self, change: Change, key: tuple[str, str]) -> Change:
        if change.after is None:
            del self._now[key]
        else:
            self._now[key] = change.after
        self._history.append(change)
        return change


def selects(namespace: str, labels: str, fields: str) -> Callable[[Object], bool]:
    """Whether an object is in a namespace and meets both selectors."""
    wanted = [_requirement(text) for text in _split(labels)]
    named = [text.partition("=") for text in fields.split(",") if text]
    assert all(path in ("metadata.name", "metadata.namespace") for path, _, _ in named), fields

    def matches(found: Object) -> bool:
        metadata = found["metadata"]
        return (
            metadata["namespace"] == namespace
            and all(meets(metadata["labels"]) for meets in wanted)
            and all(metadata[path.removeprefix("metadata.")] == value for path, _, value in named)
        )

    return matches


def _split(selector: str) -> list[str]:
    """At the commas that are not in brackets."""
    return [text.strip() for text in re.split(r",(?![^(]*\))", selector) if text.strip()]


def _requirement(text: str) -> Callable[[dict[str, str]], bool]:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", text):
        key, values = found[1], {value.strip() for value in found[3].split(",")}
        if found[2] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := re.fullmatch(r"([^!=\s]+)\s*(==?|!=)\s*(\S*)", text):
        key, value = found[1], found[3]
        if found[2] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if text.startswith("!"):
        return lambda labels: text[1:] not in labels
    return lambda labels: text in labels
