"""Whose certificates HTTP takes, as the file of authorities changes while the server runs."""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from authority import Authority
from waiting import SOON_S
from whole_coordinator import coordinator

from paceline.certificates import server_certificates
from paceline.server_security import ServerSecurity


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_authority_that_is_taken_out_is_not_trusted_over_http_any_more(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    authority, going = Authority(tmp_path), Authority(tmp_path, "going")
    trusted = tmp_path / "clients.crt"
    trust(trusted, authority, going)
    staying, leaving = (ssl.create_default_context(cafile=authority.ca_file) for _ in range(2))
    staying.load_cert_chain(*authority.issue("staying", "client"))
    leaving.load_cert_chain(*going.issue("leaving", "client"))
    leaving.maximum_version = version
    shown = authority.issue("server", "127.0.0.1")
    front = ServerSecurity(certificates=server_certificates(*shown, str(trusted)))
    async with coordinator([], security=front) as running:
        port = running.http.port
        session = await asyncio.to_thread(asked_by_tls, port, leaving)
        async with httpx.AsyncClient(verify=leaving) as open_before:
            url = running.url.replace("http:", "https:") + "/health"
            assert (await open_before.get(url)).status_code == 200
            trust(trusted, authority)
            assert front.certificates is not None
            await front.certificates.look()
            assert (await open_before.get(url)).status_code == 200
        for again in (None, session):
            with pytest.raises(OSError):
                await asyncio.to_thread(asked_by_tls, port, leaving, again)
        await asyncio.to_thread(asked_by_tls, port, staying)


def trust(file: Path, *authorities: Authority) -> None:
    file.write_bytes(b"".join(Path(authority.ca_file).read_bytes() for authority in authorities))


def asked_by_tls(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """Ask for something; returns the session, to come back with."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secret,
    ):
        secret.sendall(b"GET /health HTTP/1.1\r\nhost: it\r\nconnection: close\r\n\r\n")
        if not secret.recv(1000).startswith(b"HTTP/1.1 200"):
            raise ConnectionError("no answer")
        return secret.session
