"""What Kubernetes itself says of objects: the schemas of its versions, strict, read once each. Of
objects that others define: `custom_schemas`."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

from tests.chart.custom_schemas import CUSTOM
from tests.chart.rendering import Object

FIRST = "1.29"
"""The oldest that Chart.yaml admits."""


def minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


VERSIONS = sorted(
    {version for version in all_versions() if minor(version) >= minor(FIRST)}, key=minor
)


def faults_of(item: Object, version: str) -> list[str]:
    """What is wrong with an object, field by field."""
    name = f"{item['kind']} {item['metadata']['name']}"
    return [
        f"{name}: {error.json_path}: {error.message}"
        for error in _validator(version, item["kind"], item["apiVersion"]).iter_errors(item)
    ]


@cache
def _validator(version: str, kind: str, api: str) -> Draft202012Validator:
    if (api, kind) in CUSTOM:
        return Draft202012Validator(CUSTOM[api, kind])
    group, _, number = api.rpartition("/")
    file = "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))
    schema = schema_contents(f"kubernetes-json-schema/v{version}-local-strict/{file}.json", version)
    resource: Resource[Any] = Resource.from_contents(schema)
    registry = resource @ _definitions(version)
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Registry[Any]:
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    contents = schema_contents(f"{folder}/_definitions.json", version)
    definitions: Resource[Any] = Resource.from_contents(contents)
    return definitions @ Registry()
