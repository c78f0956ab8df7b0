"""The Secrets of a release with TLS and keys, made and made anew as an engineer would."""

from pathlib import Path

from authority import Authority, CertificateFiles

from tests.cluster.objects import Object, secret

CALLER_KEYS, WORKER_KEYS = "paceline-keys", "paceline-worker-keys"
TLS = "paceline-coordinator-tls"
WORKER_TLS, WORKER_CLIENT_TLS = "paceline-worker-tls", "paceline-worker-client-tls"
WORKER_NAME = "paceline-target.demo.svc"
"""What workers are called in their certificates."""


class Secrets:
    """Makes them; certificates of one authority."""

    def __init__(self, folder: Path, *names: str) -> None:
        """`names`: what clients call the coordinator."""
        self._authority = Authority(folder)
        self._names = names
        self.ca_file = self._authority.ca_file

    def certificate(self, name: str) -> Object:
        """A new one for one of the Secrets of certificates."""
        hosts = {TLS: self._names, WORKER_TLS: (WORKER_NAME,), WORKER_CLIENT_TLS: ("coordinator",)}
        issued: CertificateFiles = self._authority.issue(name, *hosts[name])
        files = {"tls.crt": issued.certificate, "tls.key": issued.private_key}
        texts = {key: Path(path).read_text() for key, path in files.items()}
        return secret(name, {**texts, "ca.crt": Path(self.ca_file).read_text()})

    def certificates(self) -> list[Object]:
        """New ones for all."""
        return [self.certificate(name) for name in (TLS, WORKER_TLS, WORKER_CLIENT_TLS)]

    def caller_keys(self, *keys: str) -> Object:
        """Of the same caller."""
        return secret(CALLER_KEYS, {"keys": "".join(f"somebody: {key}\n" for key in keys)})

    def worker_keys(self, shown: str, *accepted: str) -> Object:
        """What workers accept and the coordinator shows."""
        lines = "".join(f"coordinator: {key}\n" for key in accepted)
        return secret(WORKER_KEYS, {"keys": lines, "key": shown})
