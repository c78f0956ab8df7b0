"""What the coordinator shows its workers, and how it knows that they are the right ones."""

from typing import Self

from pydantic import model_validator

from paceline.api_keys import OwnKey
from paceline.certificates import client_certificates
from paceline.channel import Access
from paceline.config import ServiceSettings


class WorkerAccessSettings(ServiceSettings):
    """How the workers are reached. Files are read anew for every connection; streams stay."""

    worker_api_key_file: str = ""
    """File with the key that is shown to the workers. Empty: they ask for none."""

    worker_tls_ca_file: str = ""
    """PEM file of the authorities whose certificates workers may show. Empty: they are reached
    without TLS."""

    worker_tls_certificate_file: str = ""
    """PEM file of the certificate that is shown to workers that ask for one (mTLS)."""

    worker_tls_private_key_file: str = ""
    """PEM file of the private key of that certificate."""

    worker_tls_server_name: str = ""
    """Name that the workers' certificates are for, where that is not the host they are reached by:
    pods are reached by their IP, and have the certificate of their Service."""

    @model_validator(mode="after")
    def _worker_certificates_are_complete(self) -> Self:
        if bool(self.worker_tls_certificate_file) != bool(self.worker_tls_private_key_file):
            raise ValueError(
                "--worker-tls-certificate-file (PACELINE_WORKER_TLS_CERTIFICATE_FILE) and "
                "--worker-tls-private-key-file (PACELINE_WORKER_TLS_PRIVATE_KEY_FILE) belong "
                "together, and only one is given"
            )
        needs_ca = self.worker_tls_certificate_file or self.worker_tls_server_name
        if needs_ca and not self.worker_tls_ca_file:
            raise ValueError(
                "--worker-tls-ca-file (PACELINE_WORKER_TLS_CA_FILE) is required beside other "
                "settings of TLS to workers and was not given"
            )
        return self


def access_to_workers(settings: WorkerAccessSettings) -> Access:
    """As the settings say; raises `InvalidConfig` for a file that cannot be used."""
    certificates = None
    if settings.worker_tls_ca_file:
        certificates = client_certificates(
            settings.worker_tls_certificate_file,
            settings.worker_tls_private_key_file,
            settings.worker_tls_ca_file,
        )
    key_file = settings.worker_api_key_file
    key = OwnKey(key_file) if key_file else ""
    return Access(key, certificates, settings.worker_tls_server_name)
