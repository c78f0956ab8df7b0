"""How the places where workers are found are written in settings.

    host:port, unix:path                                  one worker
    dns:///name:port                                      every address of the name
    kubernetes://[namespace/]service[:port]               every pod of a Service
    kubernetes://[namespace][:port]?selector=requirement  every pod of the Services with these
                                                          labels; `&selector=…` adds requirements

Lists of settings are separated by commas, so a comma inside a requirement is written %2C. Reads
nothing but text: whether a name exists is found out later.
"""

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import AfterValidator

DNS = "dns://"
KUBERNETES = "kubernetes://"
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
"""What Kubernetes writes on every EndpointSlice of a Service."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_FORMS = (
    "host:port, unix:path, dns:///name:port, kubernetes://[namespace/]service[:port] or "
    "kubernetes://[namespace][:port]?selector=label=value (more requirements: &selector=…)"
)


@dataclass(frozen=True, slots=True)
class StaticSource:
    """One address, as gRPC understands it."""

    address: str


@dataclass(frozen=True, slots=True)
class DnsSource:
    """All addresses of a name."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class KubernetesSource:
    """All endpoints of the EndpointSlices that a selector finds."""

    namespace: str
    """Empty: the pod's own."""
    selector: str
    """A label selector as the API takes it."""
    port: str
    """Name or number; empty: the port named `grpc`, else the only one."""


Source = StaticSource | DnsSource | KubernetesSource


def parse_source(text: str) -> Source:
    """What a setting means; raises `ValueError` with what was expected."""
    if text.startswith(DNS):
        return _dns(text)
    if text.startswith(KUBERNETES):
        return _kubernetes(text)
    if text.startswith("unix:") or ("://" not in text and _has_port(text)):
        return StaticSource(text)
    raise ValueError(f"should be {_FORMS}")


def _checked(text: str) -> str:
    parse_source(text)
    return text


SourceName = Annotated[str, AfterValidator(_checked)]
"""A setting that names a source of workers."""


def _has_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port) <= 65535


def _dns(text: str) -> DnsSource:
    name = text.removeprefix("dns:///")
    if name == text or "/" in name or not _has_port(name):
        raise ValueError("should be dns:///name:port, with a number as the port")
    host, _, port = name.rpartition(":")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(
            f"should have a name of parts of 1 to 63 letters behind dns:///, not {host!r}"
        ) from None
    return DnsSource(host, int(port))


def _kubernetes(text: str) -> KubernetesSource:
    place, has_query, query = text.removeprefix(KUBERNETES).partition("?")
    place, has_port, port = place.partition(":")
    number = int(port) if port.isascii() and port.isdigit() else None
    if has_port and (not _PORT.fullmatch(port) or (number is not None and not 0 < number < 65536)):
        raise ValueError(f"should name a port of the Service or give its number, not {port!r}")
    if has_query:
        namespace, selector = place, _selector(query)
    else:
        namespace, _, service = place.rpartition("/")
        if not _LABEL.fullmatch(service):
            raise ValueError(f"should name a Service, not {service!r}, or have a ?selector=…")
        selector = f"{SERVICE_NAME_LABEL}={service}"
    if namespace and not _LABEL.fullmatch(namespace):
        raise ValueError(f"should name a namespace, not {namespace!r}; {_FORMS}")
    return KubernetesSource(namespace, selector, port)


def _selector(query: str) -> str:
    try:
        parameters = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        parameters = [(query, "")]
    for name, requirement in parameters or [("", "")]:
        if name != "selector" or not requirement.strip():
            raise ValueError(f"should have selector=<label>=<value> behind the ?, not {query!r}")
    return ",".join(requirement.strip() for _, requirement in parameters)
