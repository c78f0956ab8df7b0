"""The schema of the chart's values: made of values.yaml, of what a default cannot say, and of the
services' settings classes.

A map whose keys have comments takes no other key, so that what is misspelt is refused; one without
is Kubernetes' own and is left to it. A workload's keys are those of `defaults`, a worker's those of
`workerDefaults` too, and its own.
"""

from collections.abc import Iterable
from typing import Any

from values_comments import Key, described_keys

from coordinator.config import CoordinatorSettings
from draft_service.config import DraftSettings
from paceline.config import ServiceSettings
from target_service.config import TargetSettings

Schema = dict[str, Any]

WORKLOADS: dict[str, tuple[str, ...]] = {
    "coordinator": ("defaults",),
    "target": ("defaults", "workerDefaults"),
    "drafts": ("defaults", "workerDefaults"),
    "redis": ("defaults",),
}
"""Blocks of workloads, and those whose keys they take."""

SETTINGS: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "target": TargetSettings,
    "drafts": DraftSettings,
}
DERIVED = {
    "host", "port", "http_port", "grpc_port", "health_port", "metrics_port", "drain_seconds",
    "targets", "drafts", "cache_dir", "allow_unauthenticated", "tensor_parallel_size",
}  # fmt: skip
"""Settings that the chart sets from other keys, beside all that name a file or Redis."""
DERIVED_PARTS = ("_file", "redis_", "worker_tls_")

COUNT_OR_SHARE: Schema = {"type": ["integer", "string"], "pattern": "^[0-9]+%$", "minimum": 0}
SIZE = r"^$|^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
RESOURCES: Schema = {
    "type": "object",
    "additionalProperties": {
        "type": ["string", "number"],
        "pattern": r"^[0-9]+(\.[0-9]+)?([eE][0-9]+|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
    },
}
SELECTOR: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"matchLabels": {"type": "object"}, "matchExpressions": {"type": "array"}},
}
PEERS: Schema = {
    "items": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {
            "podSelector": SELECTOR,
            "namespaceSelector": SELECTOR,
            "ipBlock": {"type": "object", "required": ["cidr"]},
        },
    }
}
"""Closed, since a misspelt selector is an empty one, which lets everybody in."""
AMOUNT: Schema = {"type": "number", "minimum": 0}
AUTO: Schema = {"type": ["boolean", "string"], "enum": ["auto", True, False]}
SECONDS = "^[0-9]+(ms|s|m)$"
SAMPLERS = ("always_on", "always_off", "traceidratio")
FINER: dict[str, Schema] = {
    "fullnameOverride": {"pattern": "^$|^[a-z]([-a-z0-9]*[a-z0-9])?$"},
    "networkPolicy.clients": PEERS,
    "networkPolicy.prometheus": PEERS,
    "nameOverride": {"pattern": "^$|^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": {"items": {"type": "string"}},
    "defaults.replicas": {"minimum": 0},
    "defaults.image.pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
    "defaults.image.digest": {"pattern": "^$|^sha256:[0-9a-f]{64}$"},
    "defaults.resources": {
        "additionalProperties": False,
        "properties": {
            "requests": RESOURCES,
            "limits": RESOURCES,
            "claims": {"type": "array"},
        },
    },
    "defaults.drainSeconds": {"type": "number", "minimum": 0, "maximum": 86400},
    "defaults.startupSeconds": {"minimum": 2, "maximum": 86400},
    "defaults.updateStrategy.maxSurge": COUNT_OR_SHARE,
    "defaults.updateStrategy.maxUnavailable": COUNT_OR_SHARE,
    "defaults.podDisruptionBudget.maxUnavailable": COUNT_OR_SHARE,
    "defaults.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "defaults.extraEnv": {
        "propertyNames": {
            "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
            "not": {"pattern": "^PACELINE_([A-Z]+_)?PORT$"},
        },
        "additionalProperties": {
            "oneOf": [
                {"type": ["string", "number", "boolean"]},
                {
                    "type": "object",
                    "required": ["valueFrom"],
                    "additionalProperties": False,
                    "properties": {"valueFrom": {"type": "object"}},
                },
            ]
        },
    },
    # Probes, Services and policies know the ports, too.
    "defaults.extraArgs": {
        "items": {"type": "string", "not": {"pattern": "^--([a-z]+-)?port(=|$)"}}
    },
    "monitoring.monitors.enabled": AUTO,
    "monitoring.monitors.interval": {"pattern": SECONDS},
    "monitoring.monitors.scrapeTimeout": {"pattern": SECONDS},
    "monitoring.rules.enabled": AUTO,
    "monitoring.dashboards.enabled": AUTO,
    "autoscaling.hpa.metricType": {"enum": ["Pods", "External"]},
    "autoscaling.keda.serverAddress": {"pattern": "^$|^https?://"},
    "autoscaling.keda.authenticationRef.kind": {
        "enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]
    },
    "autoscaling.keda.pollingInterval": {"minimum": 1},
    "autoscaling.keda.cooldownPeriod": {"minimum": 0},
    "defaults.autoscaling.type": {"enum": ["none", "hpa", "keda"]},
    "defaults.autoscaling.minReplicas": {"minimum": 0},
    "defaults.autoscaling.maxReplicas": {"minimum": 1},
    "defaults.autoscaling.targets.streams": AMOUNT,
    "defaults.autoscaling.targets.verifyWaitSeconds": AMOUNT,
    "defaults.autoscaling.targets.kvUsage": AMOUNT | {"maximum": 1},
    "defaults.autoscaling.targets.proposalsWaiting": AMOUNT,
    "defaults.autoscaling.targets.busyShare": AMOUNT | {"maximum": 1},
    "defaults.autoscaling.behavior": {
        "additionalProperties": False,
        "properties": {"scaleUp": {"type": "object"}, "scaleDown": {"type": "object"}},
    },
    "telemetry.endpoint": {"pattern": "^$|^https?://"},
    "telemetry.protocol": {"enum": ["grpc", "http/protobuf"]},
    "telemetry.sampler": {
        "enum": [f"{parent}{own}" for parent in ("", "parentbased_") for own in SAMPLERS]
    },
    "telemetry.samplerArg": {"minimum": 0, "maximum": 1},
    "telemetry.resourceAttributes": {
        "propertyNames": {"pattern": "^[a-z][a-z0-9_.]*$"},
        "additionalProperties": {"type": "string", "pattern": r"^[^,;\s]*$"},
    },
    "telemetry.logLevel": {"enum": ["debug", "info", "warning", "error"]},
    "telemetry.logFormat": {"enum": ["json", "text"]},
    "workerDefaults.gpu.count": {"minimum": 0},
    "workerDefaults.cache.sizeLimit": {"pattern": SIZE},
    "workerDefaults.sharedMemory": {"pattern": SIZE},
    "workerDefaults.cache.claim.size": {"pattern": SIZE},
    "workerDefaults.cache.claim.accessModes": {
        "items": {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}
    },
    "target.tensorParallelSize": {"minimum": 1, "maximum": 64},
    "target.groupKind": {"enum": ["auto", "StatefulSet", "LeaderWorkerSet"]},
    "redis.external.url": {"pattern": "^$|^rediss?(\\+(sentinel|cluster))?://"},
}
"""What a default does not say, by the key's path."""
LISTS_OF_MAPS = {
    "tolerations", "topologySpreadConstraints", "extraEnvFrom", "extraVolumes",
    "extraVolumeMounts", "extraContainers", "extraInitContainers", "extraManifests",
    "clients", "prometheus", "rules", "extraMetrics", "relabelings", "metricRelabelings",
}  # fmt: skip
TEXTS = {"annotations", "podAnnotations", "nodeSelector", "seriesLabels"}
NAMES_OF_OBJECTS = {"existingSecret", "clientSecret", "existingClaim"}
LABELS = {"commonLabels", "labels", "podLabels"}
"""Of objects and pods: those by which they are found are not for values to change."""
OUR_LABELS: Schema = {"not": {"pattern": "^(app\\.kubernetes\\.io/|helm\\.sh/|paceline-)"}}
POOL_NAME = "^[a-z]([-a-z0-9]{0,13}[a-z0-9])?$"


def values_schema() -> Schema:
    """The whole, as `values.schema.json` has it."""
    keys = described_keys()
    root = _closed("Values of the chart Paceline.")
    for key in keys:
        if key.path[0] != "drafts" and not _is_settings(key):
            _place(root, key.path, _schema_of(key, keys))
    blocks = root["properties"]
    draft = next(key for key in keys if key.path == ("drafts",))
    blocks["drafts"] = {"type": "object", "description": draft.description}
    definitions: Schema = {}
    for name in ("defaults", "workerDefaults"):
        for key, schema in blocks[name]["properties"].items():
            definitions[key] = schema
        blocks[name]["properties"] = _references(blocks[name]["properties"])
    for name, bases in WORKLOADS.items():
        shared = [key for base in bases for key in blocks[base]["properties"]]
        block = blocks[name] if name != "drafts" else _closed("A pool of draft workers.")
        block.setdefault("additionalProperties", False)
        own = block.get("properties", {}) | _settings(name, keys)
        block["properties"] = _references(shared) | own
        if name == "drafts":
            blocks[name] |= {
                "propertyNames": {"pattern": POOL_NAME},
                "additionalProperties": {"$ref": "#/$defs/draftPool"},
            }
            definitions["draftPool"] = block | {"type": ["object", "null"]}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **root, "$defs": definitions}


def _closed(description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": {},
    }


def _references(names: Iterable[str]) -> Schema:
    return {name: {"$ref": f"#/$defs/{name}"} for name in names}


def _place(root: Schema, path: tuple[str, ...], schema: Schema) -> None:
    for name in path[:-1]:
        root = root["properties"][name]
    root["properties"][path[-1]] = schema


def _schema_of(key: Key, keys: list[Key]) -> Schema:
    name = key.path[-1]
    dotted = ".".join(key.path)
    if any(other.path[:-1] == key.path for other in keys) or key.path[0] == name in WORKLOADS:
        return _closed(key.description)
    schema: Schema = {"type": _type_of(key.default), "description": key.description}
    if name in TEXTS | LABELS:
        schema["additionalProperties"] = {"type": "string"}
    if name in NAMES_OF_OBJECTS:
        schema["pattern"] = "^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
    if name in LABELS:
        schema["propertyNames"] = OUR_LABELS
    if schema["type"] == "array" and name in LISTS_OF_MAPS:
        schema["items"] = {"type": "object"}
    return schema | FINER.get(dotted, {})


def _type_of(default: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(default), "object")


def _is_settings(key: Key) -> bool:
    return key.path[-1] == "settings"


def _settings(block: str, keys: list[Key]) -> Schema:
    """The schema of a service's `settings`: fields of its class, but what the chart derives."""
    if block not in SETTINGS:
        return {}
    key = next(key for key in keys if _is_settings(key) and key.path[0] == block)
    schema = _closed(key.description)
    for name, field in SETTINGS[block].model_json_schema()["properties"].items():
        if name not in DERIVED and not any(part in name for part in DERIVED_PARTS):
            schema["properties"][name] = _setting(field)
    return {"settings": schema}


def _setting(field: Schema) -> Schema:
    """A field as pydantic describes it, without null, title and default: unset is left out."""
    kept = {name: value for name, value in field.items() if name not in ("title", "default")}
    if "anyOf" in kept:
        kept |= next(choice for choice in kept.pop("anyOf") if choice != {"type": "null"})
    kept["description"] = " ".join(kept["description"].split())
    return kept
