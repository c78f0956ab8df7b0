"""Whom a server answers, and over what: keys and certificates, as their files are now."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc

from paceline.api_keys import ApiKeys
from paceline.certificates import Certificates, server_certificates, use
from paceline.followed_files import FollowedFiles
from paceline.security_settings import SecuritySettings


@dataclass(frozen=True)
class ServerSecurity:
    """What a server asks its callers for, and shows them; nothing unless it is told."""

    keys: ApiKeys | None = None
    certificates: FollowedFiles[Certificates] | None = None
    health_port: int | None = None

    @classmethod
    def of(cls, settings: SecuritySettings) -> Self:
        """As the settings say; raises `InvalidConfig` for a file that cannot be used."""
        certificates = None
        if settings.tls_certificate_file:
            certificates = server_certificates(
                settings.tls_certificate_file,
                settings.tls_private_key_file,
                settings.tls_client_ca_file,
            )
        keys = ApiKeys(settings.api_keys_file) if settings.api_keys_file else None
        return cls(keys, certificates, settings.health_port)

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Let a gRPC server listen; raises `RuntimeError` if it cannot."""
        files = self.certificates
        if files is None:
            return server.add_insecure_port(address)
        # Asked at each handshake, on a thread of gRPC's: what is new serves the next connection.
        credentials = grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(files.value),
            lambda: _grpc_configuration(files.value),
            bool(files.value.ca),
        )
        return server.add_secure_port(address, credentials)

    def http_context(self) -> ssl.SSLContext | None:
        """For HTTP; what is new serves the next connection. None: without TLS."""
        if self.certificates is None:
            return None
        context = _NewestContext(ssl.PROTOCOL_TLS_SERVER)
        context.newest = _server_context(self.certificates.value)
        self.certificates.on_change(context.take_over)
        return context

    def follow(self) -> list["asyncio.Task[Any]"]:
        """Keep up with what changes in the files, until the tasks are cancelled."""
        return [asyncio.create_task(file.follow()) for file in self._files()]

    def _files(self) -> Sequence[FollowedFiles[Any]]:
        keys = [self.keys.file] if self.keys else []
        return [*keys, *([self.certificates] if self.certificates else [])]


OPEN = ServerSecurity()
"""Asks for nothing, in the clear."""


def _grpc_configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pair = (certificates.private_key, certificates.certificate)
    return grpc.ssl_server_certificate_configuration([pair], certificates.ca or None)


class _NewestContext(ssl.SSLContext):
    """Hands each connection to the newest of several contexts.

    A context cannot forget whom it has trusted, and remembers sessions that began when it did. An
    event loop asks the context it was given for nothing but the object of each new connection.
    """

    newest: ssl.SSLContext

    def take_over(self, certificates: Certificates) -> None:
        """Connect as these say from now on."""
        self.newest = _server_context(certificates)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """The TLS of a new connection."""
        return self.newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificates.ca:
        context.verify_mode = ssl.CERT_REQUIRED
    use(context, certificates)
    return context
