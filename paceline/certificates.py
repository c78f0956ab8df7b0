"""Certificates of TLS and their private keys, as their files are now.

A certificate is taken over only with the key that belongs to it and within its time: while files
are being swapped, or when something went wrong with a new one, the pair before stays in use. What
is read is checked by shaking hands with it, in memory. Keys are never written anywhere and in no
message.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from paceline.errors import InvalidConfig
from paceline.followed_files import FollowedFiles


class Certificates(NamedTuple):
    """PEM as it stands in the files; empty where there is none."""

    certificate: bytes = b""
    private_key: bytes = b""
    ca: bytes = b""
    """Whose certificates are trusted."""


def server_certificates(
    certificate_file: str, private_key_file: str, client_ca_file: str
) -> FollowedFiles[Certificates]:
    """What a server shows, and whose clients it admits; raises `InvalidConfig`."""
    return _followed(certificate_file, private_key_file, client_ca_file, ssl.Purpose.SERVER_AUTH)


def client_certificates(
    certificate_file: str, private_key_file: str, ca_file: str
) -> FollowedFiles[Certificates]:
    """What a client shows, and whose servers it trusts; raises `InvalidConfig`."""
    return _followed(certificate_file, private_key_file, ca_file, ssl.Purpose.CLIENT_AUTH)


def use(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Let a new context show a certificate, and trust those of a CA."""
    if certificates.certificate:
        with (
            _as_file(certificates.certificate) as certificate,
            _as_file(certificates.private_key) as private_key,
        ):
            context.load_cert_chain(certificate, private_key)
    if certificates.ca:
        context.load_verify_locations(cadata=certificates.ca.decode())


def _followed(
    certificate_file: str, private_key_file: str, ca_file: str, purpose: ssl.Purpose
) -> FollowedFiles[Certificates]:
    """`purpose` is what the certificate is for."""
    named = {"certificate": certificate_file, "private_key": private_key_file, "ca": ca_file}
    names = [name for name, path in named.items() if path]

    def parse(content: Sequence[bytes]) -> Certificates:
        parts = {name: _ascii(part) for name, part in zip(names, content, strict=True)}
        for name, part in parts.items():
            if not part.strip():
                raise InvalidConfig(f"the file {named[name]} is empty; expected PEM.")
        found = Certificates(**parts)
        if b"-----BEGIN ENCRYPTED" in found.private_key or b"4,ENCRYPTED" in found.private_key:
            # OpenSSL would ask for the passphrase at the terminal, and wait.
            raise InvalidConfig(
                f"the private key in {private_key_file} is encrypted; expected one without a "
                "passphrase."
            )
        if found.ca:
            try:
                use(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), found._replace(certificate=b""))
            except ssl.SSLError as error:
                raise InvalidConfig(f"{ca_file} is no PEM of certificates: {error}.") from None
        if found.certificate:
            try:
                _shake_hands(found, purpose)
            except ssl.SSLError as error:
                raise InvalidConfig(
                    f"the certificate in {certificate_file} cannot be used with the private key in "
                    f"{private_key_file}: {error.reason or error}"
                    f"{_why(error)}."
                ) from None
        return found

    return FollowedFiles([named[name] for name in names], parse)


def _ascii(content: bytes) -> bytes:
    """What counts of PEM. Bundles name authorities in any letters between the certificates, and
    some editors begin a file with a mark; of TLS libraries some stumble over either."""
    return content.decode("ascii", "ignore").encode()


def _why(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", "")
    return f" ({message})" if message else ""


def _shake_hands(shown: Certificates, purpose: ssl.Purpose) -> None:
    """Raise `SSLError` unless whoever trusts this very certificate accepts it now."""
    showing, checking = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    if purpose is ssl.Purpose.CLIENT_AUTH:
        showing, checking = checking, showing
        # Somebody else's, for the server's side of the handshake, is not at hand: our own will do.
        use(checking, shown._replace(ca=b""))
        showing.check_hostname = False
        showing.verify_mode = ssl.CERT_NONE
    checking.check_hostname = False
    checking.verify_mode = ssl.CERT_REQUIRED
    # A certificate may be trusted by itself, without those that have signed it.
    checking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    checking.load_verify_locations(cadata=shown.certificate.decode())
    use(showing, shown._replace(ca=b""))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    is_server = purpose is ssl.Purpose.SERVER_AUTH
    server = (showing if is_server else checking).wrap_bio(to_server, to_client, server_side=True)
    client = (checking if is_server else showing).wrap_bio(to_client, to_server)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path where OpenSSL finds `content`; where the system can, in memory only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("paceline")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
