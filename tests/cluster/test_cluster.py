"""The cluster of these tests treats pods as Kubernetes does.

Pods of a few lines of Python or shell say what they see, or misbehave.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.network import why_not
from tests.cluster.objects import Object, secret
from tests.cluster.pod import Pod

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SECURE = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
USER = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
SERVER = """
import http.server, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = not os.path.exists('/tmp/bad' + self.path)
        self.send_response(200 if good else 500); self.end_headers()
        self.wfile.write(f'{self.client_address[0]} asks {sys.argv[1]}'.encode())
    def log_message(self, *_): pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.ThreadingHTTPServer(('0.0.0.0', 8000), Handler).serve_forever()
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, speed=20) as cluster:
        yield cluster


def pod(name: str, *command: str, restart: str = "Never", **changes: Any) -> Object:
    """One that runs a command as a careful user, with room in /tmp."""
    container = {
        "name": "main",
        "command": list(command),
        "securityContext": SECURE,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        **changes.pop("container", {}),
    }
    spec = {
        "restartPolicy": restart,
        "automountServiceAccountToken": False,
        "securityContext": USER,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **changes,
    }
    return {"kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


async def run(cluster: Cluster, item: Object) -> Pod:
    item["metadata"]["annotations"] = {"helm.sh/hook": "test"}
    (ended,) = await cluster.run_hooks([item], "test")
    return ended


def server(name: str, **changes: Any) -> Object:
    """One that answers over HTTP, and is bad at a path when there is a file of that name."""
    probe = {"periodSeconds": 1, "failureThreshold": 1}
    container = {
        "ports": [{"name": "web", "containerPort": 8000}],
        "startupProbe": {
            "httpGet": {"port": "web", "path": "/up"},
            "periodSeconds": 2,
            "failureThreshold": 60,
        },
        "livenessProbe": {"httpGet": {"port": "web", "path": "/live"}, **probe},
        "readinessProbe": {"httpGet": {"port": 8000, "path": "/ready"}, **probe},
    }
    return pod(name, "python", "-c", SERVER, name, restart="Always", container=container, **changes)


def service(name: str, **spec: Any) -> Object:
    ports = [{"name": "web", "port": 80, "targetPort": "web"}]
    full = {"selector": {"app": name}, "ports": ports, **spec}
    return {"kind": "Service", "metadata": {"name": name, "labels": {"tier": "x"}}, "spec": full}


async def test_a_container_may_do_what_is_rendered_and_no_more(cluster: Cluster) -> None:
    script = """
        id -u; id -g; id -G; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; echo $$$$
        touch /tmp/mine && echo wrote; touch /mine /usr/mine /etc/mine 2>/dev/null || echo refused
        test -e /var/run/secrets || echo none; hostname; ls /proc | grep -c '^[0-9]'
    """
    ended = await run(cluster, pod("careful", "sh", "-c", script))
    user, group, groups, *rest = ended.log.split()
    assert (user, group, groups) == ("65532", "65532", "65532")
    zero = "0" * 16
    assert rest[:7] == ["CapEff:", zero, "CapBnd:", zero, "NoNewPrivs:", "1", "1"]
    assert rest[7:11] == ["wrote", "refused", "none", "careful"]
    assert int(rest[11]) < 8, "it sees the processes of others"


async def test_variables_volumes_and_names_are_as_rendered(cluster: Cluster) -> None:
    container = {
        "env": [
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {
                "name": "MIB",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "BOTH", "value": "$(KEY) $(IP) $$(KEY) $(NO)"},
        ],
        "resources": {"limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
    }
    script = (
        'echo "$BOTH $MIB"; cat /keys/b; readlink /keys/b; stat -Lc "%a %g" /keys/b; cat /etc/hosts'
    )
    items = [{"key": "b", "path": "b"}]
    volumes = [{"name": "keys", "secret": {"secretName": "keys", "items": items}}]
    cluster.apply([secret("keys", {"a": "first", "b": "second\n"}), service("web")])
    item = pod("reader", "sh", "-c", script, container=container, volumes=volumes)
    ended = await run(cluster, item)
    lines = ended.log.splitlines()
    assert lines[0] == f"first {ended.address} $(KEY) $(NO) 64"
    assert lines[1:4] == ["second", "..data/b", "644 65532"]
    assert any(line.split()[1:3] == ["web", "web.demo"] for line in lines)


async def test_pods_wait_for_secrets_and_see_them_change(cluster: Cluster) -> None:
    script = "while ! grep -q new /keys/a; do sleep 0.05; done; cat /keys/a"
    container = {"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    cluster.apply([pod("follower", "sh", "-c", script, container=container, volumes=volumes)])
    (follower,) = cluster.pods
    await cluster.until(lambda: says(follower, "waits for Secret keys"), "it waits")
    cluster.apply([secret("keys", {"a": "old\n"})])
    await cluster.until(lambda: follower.is_started, "it runs")
    cluster.apply([secret("keys", {"a": "new\n"})])
    await cluster.until(lambda: follower.is_over, "it has seen the change")
    assert follower.log == "new\n"


async def test_only_ready_pods_are_sent_to_and_dead_ones_are_started_again(
    cluster: Cluster,
) -> None:
    cluster.apply([service("web"), server("web")])
    (web,) = cluster.pods
    await cluster.until(lambda: conditions(cluster) == (True, True, False), "ready")
    caller = pod("caller", "python", "-c", FETCH, "http://web.demo.svc")
    ended = await run(cluster, caller)
    assert ended.log == f"{ended.address} asks web"
    bad = web.folder / "volumes" / "tmp" / "bad"
    bad.mkdir()
    (bad / "ready").touch()
    await cluster.until(lambda: conditions(cluster) == (False, False, False), "not ready")
    refused = await run(cluster, caller)
    assert refused.log.startswith(("ConnectionResetError", "RemoteDisconnected"))
    (bad / "live").touch()
    await cluster.until(lambda: web.num_restarts == 1, "started again")
    (bad / "live").unlink()
    await cluster.until(lambda: web.is_started, "alive again")
    web.delete()
    await cluster.until(lambda: web.is_over, "the end")
    with pytest.raises(AssertionError, match="started again"):
        cluster.check()


async def test_who_does_not_end_in_time_is_killed_and_that_is_a_failure(cluster: Cluster) -> None:
    stubborn = pod("stubborn", "sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60")
    stubborn["spec"]["terminationGracePeriodSeconds"] = 0.3
    cluster.apply([stubborn])
    (running,) = cluster.pods
    await cluster.until(lambda: running.is_started, "it runs")
    running.delete()
    await cluster.until(lambda: running.is_over, "it is killed")
    assert running.exit_codes == {"main": 137}, running.log
    with pytest.raises(AssertionError, match="killed after"):
        cluster.check()


FETCH = """
import sys, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode(), end='')
except Exception as error: print(repr(error), end='')
"""
ASK = """
import os, ssl, sys, urllib.request, urllib.error
folder = '/var/run/secrets/kubernetes.io/serviceaccount'
read = lambda name: open(f'{folder}/{name}').read()
where = os.environ['KUBERNETES_SERVICE_HOST'] + ':' + os.environ['KUBERNETES_SERVICE_PORT']
for namespace in (read('namespace'), 'other'):
    path = f'/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices'
    asked = urllib.request.Request(f'https://{where}{path}')
    asked.add_header('Authorization', 'Bearer ' + read('token'))
    tls = ssl.create_default_context(cafile=f'{folder}/ca.crt')
    try: print(urllib.request.urlopen(asked, context=tls).status, end=' ')
    except urllib.error.HTTPError as error: print(error.code, end=' ')
"""


async def test_an_account_may_ask_what_its_role_allows(cluster: Cluster) -> None:
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    cluster.apply(
        [
            *({"kind": "ServiceAccount", "metadata": {"name": name}} for name in ("may", "not")),
            {"kind": "Role", "metadata": {"name": "reader"}, "rules": [rule]},
            {
                "kind": "RoleBinding",
                "metadata": {"name": "reader"},
                "roleRef": {"kind": "Role", "name": "reader"},
                "subjects": [{"kind": "ServiceAccount", "name": "may"}],
            },
        ]
    )
    for account, said in (("may", "200 403 "), ("not", "403 403 ")):
        own = {"serviceAccountName": account, "automountServiceAccountToken": True}
        ended = await run(cluster, pod(account, "python", "-c", ASK, **own))
        assert ended.log == said


def conditions(cluster: Cluster) -> tuple[bool, ...]:
    """Of the only endpoint of `web`: ready, serving, terminating."""
    (found,) = cluster.services["web"].slice.get("endpoints", []) or [{"conditions": {}}]
    return tuple(found["conditions"].get(name) for name in ("ready", "serving", "terminating"))


def says(pod: Pod, words: str) -> bool:
    return any(words in event.what for event in pod.events)
