"""Who may call a service: settings that coordinator, drafts and targets have in common.

Invariant: nothing listens where others can reach it without asking callers who they are, unless
the settings say so in so many words.
"""

import ipaddress
from typing import Self

from pydantic import field_validator, model_validator

from paceline.config import Port, ServiceSettings


class SecuritySettings(ServiceSettings):
    """Where a service listens, and whom it answers."""

    host: str = "127.0.0.1"
    """Address to listen on. The default admits this machine only; for any other, callers have to
    be authenticated."""

    api_keys_file: str = ""
    """File of the keys that callers may show, one in a line, `key` or `name: key`; read anew when
    it changes. Empty: no key is asked for."""

    allow_unauthenticated: bool = False
    """Listen where others can reach it without asking callers who they are. For networks that keep
    strangers out by other means."""

    tls_certificate_file: str = ""
    """PEM file of the certificate to show, with those that have signed it behind it. Files of TLS
    are read anew when they change; running connections stay. Empty: no TLS."""

    tls_private_key_file: str = ""
    """PEM file of the private key of that certificate."""

    tls_client_ca_file: str = ""
    """PEM file of the authorities whose clients are let in, each with a certificate of its own
    (mTLS); that counts as authentication. Empty: clients need none."""

    health_port: Port | None = None
    """Port of gRPC health alone, without TLS and keys: probes of Kubernetes before 1.37 speak
    neither. Unset: health is on the port of the service only."""

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        """IPv6 addresses may be written as in URLs."""
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @model_validator(mode="after")
    def _certificates_are_complete(self) -> Self:
        if bool(self.tls_certificate_file) != bool(self.tls_private_key_file):
            raise ValueError(
                "--tls-certificate-file (PACELINE_TLS_CERTIFICATE_FILE) and --tls-private-key-file "
                "(PACELINE_TLS_PRIVATE_KEY_FILE) belong together, and only one is given"
            )
        if self.tls_client_ca_file and not self.tls_certificate_file:
            raise ValueError(
                f"--tls-client-ca-file (PACELINE_TLS_CLIENT_CA_FILE) is {self.tls_client_ca_file!r}"
                ", which needs --tls-certificate-file too"
            )
        return self

    @model_validator(mode="after")
    def _strangers_are_kept_out(self) -> Self:
        asks = self.api_keys_file or self.tls_client_ca_file
        if asks or self.allow_unauthenticated or is_loopback(self.host):
            return self
        raise ValueError(
            f"--host (PACELINE_HOST) is {self.host!r}, where others can reach it, and callers are "
            "not authenticated; expected --api-keys-file (PACELINE_API_KEYS_FILE) or "
            "--tls-client-ca-file, or --allow-unauthenticated true where something else keeps "
            "strangers out"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False
