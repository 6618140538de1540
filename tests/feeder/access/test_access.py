from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from streamrec.config.server_settings import TlsSettings
from streamrec.errors import ConfigError
from streamrec.feeder.access.access import LOOK_EVERY, Access, Certificates
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.support import on_both_loops, server_settings
from tests.support import asynchronous


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("asks", [False, True])
def test_the_context_of_a_feeder(authority: Authority, asks: bool) -> None:
    context = Certificates(authority.server(asks=asks)).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is (ssl.CERT_REQUIRED if asks else ssl.CERT_NONE)
    assert all("GCM" in name or "CHACHA20" in name for name in names_of(context))


def names_of(context: ssl.SSLContext) -> list[str]:
    """Return the names of the ciphers that are offered."""
    return [cipher["name"] for cipher in context.get_ciphers()]


def test_one_file_for_both(authority: Authority) -> None:
    Certificates(TlsSettings(**authority.pair("both", same_file=True)))


def test_a_new_certificate_is_used(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = authority.server()
    found = Certificates(settings)
    before = found.context
    found.look()
    assert found.context is before
    same = Certificates(settings)
    assert same == found
    authority.server()
    found.look()
    assert found.context is not before
    assert found != same
    assert found != 1
    assert f"the certificates of {settings.cert} have changed" in caplog.text
    assert repr(found) == f"<Certificates of {settings.cert}>"


def test_one_that_cannot_be_used_is_not(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings = authority.server()
    found = Certificates(settings)
    before = found.context
    write_secret(Path(settings.cert), Path(authority.pair("other")["cert"]).read_bytes())
    found.look()
    assert found.context is before
    assert "stay as they were: server.tls: " in caplog.text
    assert "KEY_VALUES_MISMATCH" in caplog.text


def test_a_key_for_everybody_is_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    settings = authority.server()
    assert settings.key is not None
    Path(settings.key).chmod(0o644)
    Certificates(settings)
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"{settings.key} holds secrets, and others")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cert": "none"}, r"server\.tls\.cert: none cannot be read"),
        ({"key": "none"}, r"server\.tls\.key: none cannot be read"),
        ({"key": None}, r"server\.tls: .* and the key in it are not a certificate"),
        ({"client_ca": "none"}, r"server\.tls\.client_ca: none cannot be read"),
    ],
)
def test_files_that_cannot_be_used(
    authority: Authority, change: dict[str, Any], words: str
) -> None:
    settings = authority.server().model_copy(update=change)
    with pytest.raises(ConfigError, match=words):
        Certificates(settings)


A, B = "a" * 16, "b" * 16


@on_both_loops
async def test_files_are_looked_at_now_and_then(tmp_path: Path) -> None:
    authority, path = Authority(tmp_path), tmp_path / "tokens"
    write_secret(path, A)
    own = {"x": [str(path)]}
    access = Access(server_settings(tls=authority.server()), own)
    await access.look()
    assert access.certificates is not None
    before = access.certificates.context
    write_secret(path, B)
    authority.server()
    await access.look()
    assert not access.tokens.grant(B).opens("x")
    access._looked_at -= LOOK_EVERY
    await access.look()
    assert access.tokens.grant(B).opens("x")
    assert access.certificates.context is not before


@asynchronous
async def test_without_files_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(server_settings(token=A))
    monkeypatch.setattr(access, "look_now", None)
    await access.look()
