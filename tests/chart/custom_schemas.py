"""What the operators of Prometheus and KEDA say of their objects, as far as the chart uses it.

Written by hand after their custom resource definitions (monitoring.coreos.com/v1,
keda.sh/v1alpha1), and closed: a field that is not here is misspelt, or has to be looked up there.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": "^(0|(([0-9]+)y)?([0-9]+(ms|[smhdw]))+)$"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}


def closed(required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def list_of(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def custom(spec: Schema) -> Schema:
    metadata = closed(
        "name namespace labels", name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS
    )
    return closed(
        "apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec
    )


SELECTOR = closed("matchLabels", matchLabels=LABELS)
RELABELING = closed(
    "",
    sourceLabels=list_of(TEXT),
    separator=TEXT,
    targetLabel={"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    regex=TEXT,
    replacement=TEXT,
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
)
SECRET = closed("name key", name=TEXT, key=TEXT)
OF_SECRET = closed("secret", secret=SECRET)
ENDPOINT = closed(
    "port",
    port=TEXT,
    path=TEXT,
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings=list_of(RELABELING),
    metricRelabelings=list_of(RELABELING),
    tlsConfig=closed("", serverName=TEXT, ca=OF_SECRET, cert=OF_SECRET, keySecret=SECRET),
)
RULE = closed(
    "expr",
    **{"record": TEXT, "alert": TEXT, "expr": TEXT, "for": DURATION},
    labels=LABELS,
    annotations=LABELS,
)
POLICY = closed(
    "type value periodSeconds",
    type={"enum": ["Pods", "Percent"]},
    value={"type": "integer", "minimum": 1},
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)
DIRECTION = closed(
    "",
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=list_of(POLICY),
)
TRIGGER = closed(
    "type metadata",
    type=TEXT,
    name=TEXT,
    metadata=LABELS,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    authenticationRef=closed("name", name=TEXT, kind=TEXT),
)
BEHAVIOR = closed("", scaleUp=DIRECTION, scaleDown=DIRECTION)

CUSTOM: dict[tuple[str, str], Schema] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): custom(
        closed("selector endpoints", selector=SELECTOR, endpoints=list_of(ENDPOINT))
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): custom(
        closed(
            "selector podMetricsEndpoints",
            selector=SELECTOR,
            podMetricsEndpoints=list_of(ENDPOINT),
        )
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): custom(
        closed("groups", groups=list_of(closed("name rules", name=TEXT, rules=list_of(RULE))))
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): custom(
        closed(
            "scaleTargetRef triggers",
            scaleTargetRef=closed("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            cooldownPeriod=COUNT,
            advanced=closed("", horizontalPodAutoscalerConfig=closed("", behavior=BEHAVIOR)),
            triggers=list_of(TRIGGER),
        )
    ),
}
