"""An authority of the tests' own; its certificates are in files, as those of a mounted Secret."""

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme


class CertificateFiles(NamedTuple):
    """Where a certificate and its key are."""

    certificate: str
    private_key: str


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.ca_file = str(folder / f"{name}.crt")
        self._ca.cert_pem.write_to_path(self.ca_file)

    def issue(
        self,
        name: str,
        *hosts: str,
        is_expired: bool = False,
        files: str = "",
        key_type: trustme.KeyType = trustme.KeyType.ECDSA,
    ) -> CertificateFiles:
        """A certificate for these hosts, in files of this name or over those that are there."""
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        times = {"not_before": now - 3 * day, "not_after": now - day} if is_expired else {}
        issued = self._ca.issue_cert(*hosts, key_type=key_type, **times)
        paths = [self._folder / f"{files or name}.{kind}" for kind in ("crt", "key")]
        paths[0].write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        paths[1].write_bytes(issued.private_key_pem.bytes())
        return CertificateFiles(*map(str, paths))
