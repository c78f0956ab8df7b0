"""Lists and watches EndpointSlices; the only module that imports `kubernetes`.

Takes from that package what is hard (credentials, TLS, sessions, paths) and reads the answers
itself: its `Watch` hides a lost resource version and opens a client of its own, and its models
refuse a whole answer for one value they do not know. Objects stay plain JSON. Every call has a
time limit, so that a connection that only looks alive is found out.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio.client import ApiClient, Configuration, DiscoveryV1Api
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from paceline.workers.discovery.source_names import KubernetesSource

# It says at every try what our own sentence says once.
logging.getLogger("kubernetes.aio.config").setLevel(logging.ERROR)

ANSWER_TIMEOUT_S = 10.0
"""For a whole list, and for a watch to begin."""
WATCH_S = 60
"""The server ends a watch after so long. This bounds how long a connection that has died without
a word goes unnoticed: a watch may be silent for all its time."""
WATCH_MARGIN_S = 5.0
"""How much later than asked for the end of a watch may come."""

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_EVENTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
RESOURCE = "endpointslices.discovery.k8s.io"


class ApiCut(Exception):
    """No answer, or one that broke off: go on from where it was."""


class ApiRefusal(Exception):
    """The API server has answered with an error: list again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_gone(self) -> bool:
        """The resource version is too old; nothing is wrong."""
        return self.status == 410


class NoCredentials(Exception):
    """What says where the API server is and who asks is missing, or cannot be used."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All slices at one time."""

    version: str
    """From here on a watch misses nothing."""
    slices: dict[str, dict[str, Any]]
    """By name."""


@dataclass(frozen=True, slots=True)
class SliceEvent:
    """One change since the version before."""

    kind: str
    """`ADDED`, `MODIFIED`, `DELETED`, or `BOOKMARK`, which only has a version."""
    name: str
    version: str
    slice: dict[str, Any]


class SliceApi:
    """The slices that one source asks for."""

    def __init__(self, client: ApiClient, namespace: str, selector: str) -> None:
        self._api = DiscoveryV1Api(client)
        self._namespace = namespace
        self._selector = selector

    async def list(self) -> Listing:
        """What there is. Raises `ApiCut` or `ApiRefusal`."""
        async with self._asked("list", {}, ANSWER_TIMEOUT_S) as response:
            found = _json(await _read(response))
        if found.get("kind") != "EndpointSliceList":  # of a proxy, or of a server that is not ready
            raise ApiCut("the API server sent what is no EndpointSliceList")
        slices = {_name(item): item for item in found.get("items") or ()}
        return Listing(_version(found), slices)

    async def watch(self, version: str) -> AsyncGenerator[SliceEvent | None, None]:
        """Changes since `version`; begins with None, as soon as the server has agreed to watch.

        Ends when the server ends it. Raises `ApiCut` or `ApiRefusal`.
        """
        arguments = {
            "watch": True,
            "resource_version": version,
            "allow_watch_bookmarks": True,
            "timeout_seconds": WATCH_S,
        }
        async with self._asked("watch", arguments, WATCH_S + WATCH_MARGIN_S) as response:
            yield None
            async with aclosing(_lines(response)) as lines:
                async for line in lines:
                    yield _event(_json(line), self._denied("watch"))

    @asynccontextmanager
    async def _asked(
        self, verb: str, arguments: dict[str, Any], timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._api.list_namespaced_endpoint_slice_without_preload_content(
                    self._namespace,
                    label_selector=self._selector,
                    _request_timeout=float(timeout_s),  # in all; a pair would not work with aiohttp
                    **arguments,
                )
            assert response is not None
            if response.status != 200:
                raise _refusal(response.status, await _read(response), self._denied(verb))
            yield response
        except ConfigException as error:
            raise ApiCut(f"the token for the API server cannot be read again: {error}") from error
        except TimeoutError as error:
            raise ApiCut(f"the API server did not answer in time ({verb})") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiCut(f"the API server is out of reach ({verb}): {error!r}") from error
        finally:
            if response is not None:
                response.close()

    def _denied(self, verb: str) -> str:
        return (
            f"may not {verb} {RESOURCE} in the namespace {self._namespace!r}; the service account "
            "needs the verbs get, list and watch on them"
        )


@asynccontextmanager
async def open_slice_api(source: KubernetesSource) -> AsyncIterator[SliceApi]:
    """A client for one source. Raises `NoCredentials`."""
    client, namespace = await asyncio.to_thread(_load_client, source.namespace)
    try:
        yield SliceApi(client, namespace, source.selector)
    finally:
        await client.close()


def _load_client(namespace: str) -> tuple[ApiClient, str]:
    """A client and its namespace, "" being that where it is at home: as a pod, else as `kubectl`
    would. Blocks."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        own_namespace = _load_kube_config(configuration, error)
        return _client(configuration), namespace or own_namespace
    return _client(configuration), namespace or _namespace_of_pod()


def _load_kube_config(configuration: Configuration, not_in_cluster: ConfigException) -> str:
    """Returns the namespace of its context."""
    loading = load_kube_config(client_configuration=configuration, persist_config=False)
    try:
        loader = asyncio.run(loading)
    except (ConfigException, OSError) as error:
        raise NoCredentials(
            f"not in a pod with a service account ({not_in_cluster}), and no kubeconfig ({error})"
        ) from error
    return loader.current_context["context"].get("namespace") or "default"


def _namespace_of_pod() -> str:
    try:
        return OWN_NAMESPACE.read_text().strip()
    except OSError as error:
        raise NoCredentials(
            f"the service account has no namespace ({error}); expected the source to name one: "
            "kubernetes://namespace/service"
        ) from error


def _client(configuration: Configuration) -> ApiClient:
    try:
        return ApiClient(configuration)
    except OSError as error:
        message = f"cannot trust an API server with {configuration.ssl_ca_cert}: {error}"
        raise NoCredentials(message) from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await response.read()


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    while True:
        try:
            line = await response.content.readline()
        except LineTooLong as error:  # a list has no lines
            raise ApiRefusal(200, "the API server sent a line that is too long") from error
        if not line:
            return
        if line.strip():
            yield line


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ApiCut("the API server sent what is no JSON") from error
    if not isinstance(found, dict):
        raise ApiCut("the API server sent what is no JSON object")
    return found


def _event(event: dict[str, Any], denied: str) -> SliceEvent:
    kind, found = event.get("type", ""), event.get("object")
    if kind not in _EVENTS or not isinstance(found, dict):
        raise ApiCut("the API server sent what is no event of a watch")
    if kind == "ERROR":
        raise _refused(int(found.get("code") or 500), str(found.get("message", "")), denied)
    return SliceEvent(kind, _name(found), _version(found), found)


def _refusal(status: int, body: bytes, denied: str) -> ApiRefusal:
    try:
        message = str(_json(body).get("message", ""))
    except ApiCut:
        message = ""
    return _refused(status, message, denied)


def _refused(status: int, message: str, denied: str) -> ApiRefusal:
    if status == 403:
        return ApiRefusal(status, f"{denied} (403: {message})")
    return ApiRefusal(status, f"the API server answers {status}: {message or 'no reason'}")


def _name(found: dict[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("name", ""))


def _version(found: dict[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion", ""))
