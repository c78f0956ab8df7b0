"""A small API server of Kubernetes for tests: EndpointSlices over real HTTP, and faults on command.

    async with KubernetesApi() as api:
        api.write_kubeconfig(path)                  # for KUBECONFIG; or the fixture `kubernetes`
        api.put_pod("draft", "127.0.0.1:5001")      # a ready pod of the Service `draft`
        api.put_pod("draft", "127.0.0.1:5001", ready=False, serving=True, terminating=True)
        api.delete_pod("draft", "127.0.0.1:5001")
        api.cut(); api.fail(500); api.silence(); api.compact(); api.heal()

Lists have real versions; watches are lines of JSON in chunks that honour versions, selectors,
`timeoutSeconds` and bookmarks, and answer 410 for what is compacted.
"""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from kubernetes_objects import Change, Object, Objects, endpoint, endpoint_slice, selects
from kubernetes_watches import Watch, error, status

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


class KubernetesApi:
    """Listens on a port of its own; the same one after a restart."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.token = "a-token"
        """What `Authorization: Bearer` must say, unless `access` is another."""
        self.access: Callable[[str, str, str], int] = lambda token, *_: (
            200 if token == self.token else 401
        )
        """The status for who shows this token, for a verb, in a namespace."""
        self.host = "127.0.0.1"
        self.port = 0
        self.num_lists = 0
        self.num_watches = 0
        """Begun so far, failed ones too."""
        self.watch_versions: list[int] = []
        """Where each was to begin."""
        self.delay_s = 0.0
        """Before every answer."""
        self.said: Object | None = None
        """In place of every list."""
        self.gone_as_event = False
        """Say 410 in a watch that has begun, and not as its status."""
        self._watches: set[Watch] = set()
        self._failures: dict[str, int] = {}
        self._is_silent = asyncio.Event()
        self.tls: ssl.SSLContext | None = None
        """Speaks HTTPS with it; None: HTTP."""
        self.num_unauthorized = 0
        """Calls so far that `access` refused."""
        self._runner: web.AppRunner | None = None
        self._uids: dict[tuple[str, str, str], str] = {}

    async def __aenter__(self) -> "KubernetesApi":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}"

    @property
    def num_watchers(self) -> int:
        """Watches that are open now."""
        return len(self._watches)

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get(SLICES, self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be out of reach; what is stored stays."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def write_kubeconfig(self, path: Path, namespace: str = "default") -> Path:
        """How to reach this server, as `kubectl` and our coordinator read it."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": self.url}}],
            "users": [{"name": "tests", "user": {"token": self.token}}],
            "contexts": [
                {
                    "name": "tests",
                    "context": {"cluster": "tests", "user": "tests", "namespace": namespace},
                }
            ],
        }
        path.write_text(json.dumps(config))
        return path

    # What is stored

    def put_slice(self, found: Object) -> None:
        """Create or replace a slice (`kubernetes_objects.endpoint_slice`)."""
        self._tell(self.objects.put(found))

    def delete_slice(self, name: str, namespace: str = "default") -> None:
        """Take a slice away."""
        self._tell(self.objects.delete(name, namespace))

    def put_pod(
        self,
        service: str,
        address: str,
        *,
        uid: str | None = None,
        namespace: str = "default",
        labels: dict[str, str] | None = None,
        **conditions: bool | None,
    ) -> None:
        """A pod of a Service, at `host:port`, in a slice of its own since ports differ here.

        It keeps its uid until it is deleted, unless another is given.
        """
        host, _, port = address.rpartition(":")
        key = namespace, service, address
        self._uids[key] = uid or self._uids.get(key) or f"uid-{self.objects.version}"
        pod = endpoint(host.strip("[]"), uid=self._uids[key], **conditions)
        ports = [{"name": "grpc", "port": int(port), "protocol": "TCP"}]
        self.put_slice(
            endpoint_slice(
                _slice_name(service, address),
                [pod],
                service=service,
                namespace=namespace,
                ports=ports,
                labels=labels,
            )
        )

    def delete_pod(self, service: str, address: str, namespace: str = "default") -> None:
        """The pod is gone."""
        self._uids.pop((namespace, service, address), None)
        self.delete_slice(_slice_name(service, address), namespace)

    # What goes wrong

    def cut(self) -> None:
        """Break off all watches in the middle."""
        for watch in list(self._watches):
            watch.tell("cut")

    def end_watches(self) -> None:
        """End all watches as if their time was up, without a last bookmark."""
        for watch in list(self._watches):
            watch.tell("end")

    def send_bookmarks(self) -> None:
        """Tell the version to all who asked for bookmarks."""
        for watch in list(self._watches):
            watch.tell("bookmark")

    def fail(self, status: int, verb: str = "") -> None:
        """Answer every list, every watch, or both with an error, and end the open watches so."""
        self._failures = dict.fromkeys([verb] if verb else ["list", "watch"], status)
        if verb != "list":
            self.cut()

    def silence(self) -> None:
        """Say nothing any more, on open connections and on new ones."""
        self._is_silent.set()

    def heal(self) -> None:
        """All is well again; what was silenced stays so."""
        self._failures = {}
        self.said = None
        self._is_silent = asyncio.Event()
        self.delay_s = 0.0

    def say(self, event: Object) -> None:
        """Have this in all watches."""
        for watch in list(self._watches):
            watch.tell(event)

    def compact(self) -> None:
        """Forget the history: a watch that comes back from before gets 410."""
        self.objects.compact()

    # HTTP

    def _tell(self, change: Change) -> None:
        for watch in list(self._watches):
            watch.tell(change)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in ("true", "True", "1")
        verb = "watch" if is_watch else "list"
        if is_watch:
            self.num_watches += 1
            self.watch_versions.append(int(request.query.get("resourceVersion") or 0))
        else:
            self.num_lists += 1
        if self._is_silent.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(self.delay_s)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        namespace = request.match_info["namespace"]
        shown = token if scheme.lower() == "bearer" else ""
        if (code := self.access(shown, verb, namespace)) != 200:
            self.num_unauthorized += 1
            return status(code, "Unauthorized" if code == 401 else "Forbidden")
        if verb in self._failures:
            return status(self._failures[verb], f"told to fail ({verb})")
        matches = selects(
            namespace,
            request.query.get("labelSelector", ""),
            request.query.get("fieldSelector", ""),
        )
        if is_watch:
            return await self._watch(Watch(request, matches, self._is_silent))
        return web.json_response(
            self.said
            or {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": str(self.objects.version)},
                "items": self.objects.matching(matches),
            }
        )

    async def _watch(self, watch: "Watch") -> web.StreamResponse:
        if watch.version < self.objects.oldest:
            if not self.gone_as_event:
                return status(410, "too old resource version")
            watch.tell(error(410, "too old resource version"))
        else:
            for change in self.objects.since(watch.version):
                watch.tell(change)
        self._watches.add(watch)
        try:
            return await watch.serve(self.objects)
        finally:
            self._watches.discard(watch)


def _slice_name(service: str, address: str) -> str:
    return f"{service}-{address.replace('.', '-').replace(':', '-')}"
