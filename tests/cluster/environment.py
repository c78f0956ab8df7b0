"""The variables, command and arguments of a container, as the kubelet makes them of a pod."""

import re
from collections.abc import Callable
from decimal import Decimal

from tests.cluster.objects import Object, Objects

FACTORS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGT", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGT", 1)},
}


def quantity(text: object) -> Decimal:
    """A quantity as a number: `500m` is a half, `1Ki` 1024."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert found, f"{text!r} is no quantity"
    return Decimal(found[1]) * FACTORS[found[2]]


def variables(
    container: Object, objects: Objects, field: Callable[[str], str], given: dict[str, str]
) -> dict[str, str]:
    """All of them; `given` are those that every container has. Raises `NotThere`."""
    env = dict(given)
    for source in container.get("envFrom", []):
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if key in source:
                files = objects.files(kind, source[key]["name"])
                prefix = source.get("prefix", "")
                env |= {prefix + name: content.decode() for name, content in files.items()}
    for item in container.get("env", []):
        value = _value(item, container, objects, field, env)
        if value is not None:
            env[item["name"]] = value
    return env


def command(container: Object, env: dict[str, str]) -> list[str]:
    """What is run."""
    assert container.get("command"), "an image's own command is not known here"
    return [expanded(text, env) for text in [*container["command"], *container.get("args", [])]]


def expanded(text: str, env: dict[str, str]) -> str:
    """With `$(NAME)` replaced where there is such a variable."""
    pattern = r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)"
    return re.sub(pattern, lambda found: env.get(found[1], found[0]) if found[1] else "$", text)


def pod_field(pod: Object, status: dict[str, str], path: str) -> str:
    """What a `fieldRef` says."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    known = {
        "metadata.name": "name",
        "metadata.namespace": "namespace",
        "metadata.uid": "uid",
        "spec.nodeName": "node",
        "status.podIP": "address",
        "status.hostIP": "host_address",
    }
    if path == "spec.serviceAccountName":
        return str(pod["spec"].get("serviceAccountName", "default"))
    return status[known[path]]


def _value(
    item: Object,
    container: Object,
    objects: Objects,
    field: Callable[[str], str],
    env: dict[str, str],
) -> str | None:
    if (source := item.get("valueFrom")) is None:
        return expanded(item.get("value") or "", env)
    if found := source.get("secretKeyRef"):
        return objects.value("Secret", found)
    if found := source.get("configMapKeyRef"):
        return objects.value("ConfigMap", found)
    if found := source.get("fieldRef"):
        return field(found["fieldPath"])
    found = source["resourceFieldRef"]
    section, _, name = found["resource"].partition(".")
    amount = quantity(container["resources"][section][name]) / quantity(found.get("divisor", 1))
    return str(int(amount.to_integral_value("ROUND_CEILING")))
