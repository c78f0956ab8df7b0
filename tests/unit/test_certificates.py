"""Pairs of certificate and key: what is taken over, and what is not."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, CertificateFiles
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from paceline.certificates import client_certificates, server_certificates
from paceline.errors import InvalidConfig

FOLLOW: list[Callable[[str, str, str], Any]] = [server_certificates, client_certificates]


def content_of(files: CertificateFiles) -> tuple[bytes, bytes]:
    return Path(files.certificate).read_bytes(), Path(files.private_key).read_bytes()


def write(files: CertificateFiles, content: tuple[bytes, bytes]) -> None:
    for path, part in zip(files, content, strict=True):
        Path(path).write_bytes(part)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("follow", FOLLOW)
async def test_only_a_pair_that_belongs_together_and_is_in_its_time_replaces_another(
    follow: Callable[[str, str, str], Any],
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = authority.issue("first", "localhost")
    found = follow(*first, authority.ca_file)
    before = found.value
    second = content_of(authority.issue("second", "localhost"))
    expired = authority.issue("expired", "localhost", is_expired=True)
    for pair in (
        (second[0], before.private_key),
        (before.certificate, second[1]),
        (second[0][:200], second[1]),
        (b"", b""),
        (b"garbage", second[1]),
        content_of(expired),
    ):
        write(first, pair)
        await found.look()
        assert found.value == before
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert any("has expired" in message for message in told)
    assert any("KEY_VALUES_MISMATCH" in message for message in told)
    assert any("first.crt is empty" in message for message in told)
    assert "PRIVATE" not in caplog.text
    write(first, second)
    await found.look()
    assert (found.value.certificate, found.value.private_key) == second


@pytest.mark.parametrize("follow", FOLLOW)
def test_what_cannot_be_used_is_refused_at_the_start(
    follow: Callable[[str, str, str], Any], authority: Authority, tmp_path: Path
) -> None:
    good, other = authority.issue("good", "localhost"), authority.issue("other", "localhost")
    garbage = tmp_path / "garbage"
    garbage.write_text("no PEM")
    for certificate, key, ca, message in (
        (good.certificate, other.private_key, "", "good.crt cannot be used with .*other.key"),
        (*authority.issue("old", "localhost", is_expired=True), "", "certificate has expired"),
        (str(garbage), good.private_key, "", "garbage cannot be used"),
        (*good, str(garbage), "garbage is no PEM of certificates"),
        (*good, str(tmp_path / "nothing"), "nothing cannot be read"),
    ):
        with pytest.raises(InvalidConfig, match=message):
            follow(certificate, key, ca)


@pytest.mark.parametrize("follow", FOLLOW)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
async def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(
    follow: Callable[[str, str, str], Any],
    form: PrivateFormat,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = authority.issue("server", "localhost")
    found = follow(*files, "")
    before = found.value
    key = load_pem_private_key(before.private_key, None)
    encrypted = key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"a passphrase"))
    write(files, (before.certificate, encrypted))
    await found.look()
    assert found.value == before
    assert "server.key is encrypted; expected one without a passphrase" in caplog.text
    with pytest.raises(InvalidConfig, match="is encrypted"):
        follow(*files, "")


@pytest.mark.parametrize("follow", FOLLOW)
@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", "# Főtanúsítvány\n".encode()])
async def test_what_stands_around_certificates_in_any_letters_does_not_matter(
    follow: Callable[[str, str, str], Any], before: bytes, authority: Authority
) -> None:
    """As in bundles that name each authority, and in files that Windows has written."""
    files = authority.issue("server", "localhost")
    found = follow(*files, files.certificate)
    plain = found.value
    write(files, (before + plain.certificate, before + plain.private_key))
    await found.look()
    for part, content in zip(found.value, plain, strict=True):
        assert part.isascii()
        assert part.endswith(content)
