"""What a cluster has been told: objects by kind and name, and what pods take out of them.

Knows how Secrets, ConfigMaps, accounts and Roles are written, and nothing of processes.
"""

import base64
from typing import Any

Object = dict[str, Any]
NAMESPACE = "demo"


class NotThere(Exception):
    """A pod waits until the object or key is there, as it does in Kubernetes."""


class Objects:
    """All objects of one namespace."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], Object] = {}

    def put(self, item: Object) -> None:
        """Create or replace one."""
        self._now[item["kind"], item["metadata"]["name"]] = item

    def delete(self, kind: str, name: str) -> None:
        """Take one away."""
        del self._now[kind, name]

    def of_kind(self, kind: str) -> list[Object]:
        """All of a kind."""
        return [item for (found, _), item in self._now.items() if found == kind]

    def get(self, kind: str, name: str) -> Object:
        """One; raises `NotThere`."""
        if (kind, name) not in self._now:
            raise NotThere(f"{kind} {name}")
        return self._now[kind, name]

    def files(self, kind: str, name: str) -> dict[str, bytes]:
        """Contents of a Secret or ConfigMap by their keys; raises `NotThere`."""
        item = self.get(kind, name)
        plain = {**item.get("stringData", {}), **(item.get("data", {}) if kind != "Secret" else {})}
        found = {key: text.encode() for key, text in plain.items()}
        encoded = dict(item.get("binaryData", {}))
        if kind == "Secret":
            encoded |= item.get("data") or {}
        return found | {key: base64.b64decode(text) for key, text in encoded.items()}

    def value(self, kind: str, reference: Object) -> str | None:
        """What a `secretKeyRef` or `configMapKeyRef` says; None: optional and not there."""
        try:
            files = self.files(kind, reference["name"])
            if reference["key"] not in files:
                raise NotThere(f"key {reference['key']} of {kind} {reference['name']}")
        except NotThere:
            if reference.get("optional"):
                return None
            raise
        return files[reference["key"]].decode()

    def access(self, token: str, verb: str, group: str, resource: str) -> int:
        """The status with which the API server answers the bearer of a token: 200, 401 or 403."""
        if not token.startswith("token-of-"):
            return 401
        account = token.removeprefix("token-of-")
        roles = {
            binding["roleRef"]["name"]
            for binding in self.of_kind("RoleBinding")
            for subject in binding["subjects"]
            if (subject["kind"], subject["name"]) == ("ServiceAccount", account)
        }
        rules = [
            rule
            for role in self.of_kind("Role")
            if role["metadata"]["name"] in roles
            for rule in role["rules"]
        ]
        allowed = any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in rules
        )
        return 200 if allowed else 403


def token_of(account: str) -> str:
    """What the pods of a service account show the API server."""
    return f"token-of-{account}"


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether labels have all that a selector asks for."""
    return bool(selector) and selector.items() <= labels.items()


def secret(name: str, files: dict[str, str]) -> Object:
    """A Secret with these files."""
    data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
