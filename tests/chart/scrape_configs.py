"""Monitors of the chart as the Prometheus Operator hands them to Prometheus, of targets run here.

The operator writes Kubernetes' discovery into a scrape configuration, then relabelings of its own,
then those of the monitor. Here targets are listed, with the labels that discovery would give them;
all else is the same, so series are called what they are called in a cluster.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.chart.rendering import Manifests, Object

Config = dict[str, Any]
NAMESPACE = "demo"


def scrape_configs(
    manifests: Manifests, addresses: Mapping[str, Sequence[str]], interval: str = "1s"
) -> list[Config]:
    """`addresses`: of the pods of each workload, `host:port` of the port that its monitor names."""
    pods = dict(manifests.pods())
    found = []
    for monitor in manifests.of_kind("ServiceMonitor", "PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        (name,) = [
            name for name, pod in pods.items() if selector <= pod["metadata"]["labels"].items()
        ]
        endpoint = endpoint_of(monitor)
        found.append(
            {
                "job_name": f"{monitor['kind']}/{NAMESPACE}/{monitor['metadata']['name']}/0",
                "metrics_path": endpoint["path"],
                "scheme": endpoint.get("scheme", "http"),
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "static_configs": [
                    {
                        "targets": [address],
                        "labels": discovered(monitor, pods[name], pod_name(name, n)),
                    }
                    for n, address in enumerate(addresses[name])
                ],
                "relabel_configs": [
                    *operators_own(monitor),
                    *(snake_cased(item) for item in endpoint["relabelings"]),
                ],
            }
        )
    return found


def endpoint_of(monitor: Object) -> Object:
    """The one thing that it scrapes of each of its targets."""
    spec = monitor["spec"]
    (found,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert isinstance(found, dict)
    return found


def pod_name(workload: str, number: int) -> str:
    """As a ReplicaSet names its pods."""
    return f"{workload}-5d9c7b6f4-x{number:04d}"


def discovered(monitor: Object, pod: Object, name: str) -> dict[str, str]:
    """The labels of Kubernetes' discovery."""
    found = {
        "__meta_kubernetes_namespace": NAMESPACE,
        "__meta_kubernetes_pod_name": name,
        "__meta_kubernetes_pod_container_name": pod["spec"]["containers"][0]["name"],
        "__meta_kubernetes_service_name": monitor["metadata"]["name"],
    }
    for label, value in pod["metadata"]["labels"].items():
        found["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)] = value
    return found


def operators_own(monitor: Object) -> list[Config]:
    """What the operator puts before the relabelings of a monitor (prometheus-operator 0.80)."""
    labels = {"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"}
    if monitor["kind"] == "ServiceMonitor":
        labels["service"] = "service_name"
    configs: list[Config] = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
        for target, source in labels.items()
    ]
    if monitor["kind"] == "ServiceMonitor":
        configs.append({"source_labels": [configs[-1]["source_labels"][0]], "target_label": "job"})
    else:
        job = f"{NAMESPACE}/{monitor['metadata']['name']}"
        configs.append({"target_label": "job", "replacement": job})
    port = endpoint_of(monitor)["port"]
    return [*configs, {"target_label": "endpoint", "replacement": port}]


def snake_cased(relabeling: Object) -> Config:
    """Keys of the operator's objects are Prometheus' own, in other letters."""
    return {re.sub(r"([A-Z])", r"_\1", key).lower(): value for key, value in relabeling.items()}
