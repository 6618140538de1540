from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from streamrec.errors import ConfigError, FeederLost, FeederRefused
from streamrec.feeder.access.access import client_context, failure, tls_files
from streamrec.feeder.access.address import Address
from tests.feeder.certificates import Authority, write_secret

TLS = Address("feeder", 1, dataset="x", tls=True)
PLAIN = Address("feeder", 1, dataset="x")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("tls", "files"),
    [
        (None, {}),
        (True, {}),
        ("ca.pem", {"ca": "ca.pem"}),
        (Path("ca.pem"), {"ca": "ca.pem"}),
        ({"ca": "a", "cert": Path("b"), "key": "c"}, {"ca": "a", "cert": "b", "key": "c"}),
        ({"cert": "b"}, {"cert": "b"}),
        ({}, {}),
    ],
)
def test_the_files_of_a_client(tls: Any, files: dict[str, str]) -> None:
    assert tls_files(tls, TLS) == files


@pytest.mark.parametrize("tls", [False, 1, b"ca.pem", {"ca": "a", "certs": "b"}, {"key": "c"}, [1]])
def test_no_files_of_a_client(tls: Any) -> None:
    with pytest.raises(ConfigError, match="to connect to tls://feeder:1/x, tls must be True"):
        tls_files(tls, TLS)


def test_an_address_without_tls() -> None:
    assert tls_files(None, PLAIN) is None
    assert tls_files(False, PLAIN) is None
    for tls in (True, "ca.pem"):
        with pytest.raises(ConfigError, match="write tls:// in the address"):
            tls_files(tls, PLAIN)


def test_a_context_of_a_client(authority: Authority) -> None:
    context = client_context({"ca": authority.file, **authority.pair("client")})
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1
    client_context(authority.pair("both", same_file=True))


def test_without_a_file_the_system_s_authorities_are_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    monkeypatch.setenv("SSL_CERT_DIR", "")
    (known,) = client_context({}).get_ca_certs()
    assert [known] == client_context({"ca": authority.file}).get_ca_certs()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ca": "none"}, r"none holds no certificate of an authority \(No such file"),
        ({"ca": "nonsense"}, "nonsense holds no certificate of an authority"),
        (
            {"cert": "none"},
            r"none and the key in it are not a certificate and .* key \(No",
        ),
        ({"cert": "one.pem", "key": "two.key"}, "one.pem and two.key are not .*VALUES_MISMATCH"),
        ({"cert": "one.pem"}, "one.pem and the key in it are not a certificate"),
        ({"cert": "one.pem", "key": "locked.key"}, "the key without a password"),
    ],
)
def test_files_that_cannot_be_used(
    files: dict[str, str],
    words: str,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    one = authority.pair("one")
    authority.pair("two")
    write_secret(tmp_path / "nonsense", "nonsense")
    write_secret(tmp_path / "locked.key", locked(Path(one["key"]).read_bytes()))
    with pytest.raises(ConfigError, match=f"tls: .*{words}"):
        client_context(files)


def locked(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return form.load_pem_private_key(key, None).private_bytes(
        form.Encoding.PEM,
        form.PrivateFormat.PKCS8,
        form.BestAvailableEncryption(b"password"),
    )


def error(reason: str) -> ssl.SSLError:
    made = ssl.SSLError(1, "[SSL] whatever")
    made.reason = reason
    return made


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("WRONG_VERSION_NUMBER", FeederRefused, "does not speak TLS; connect to the feeder's"),
        ("RECORD_LAYER_FAILURE", FeederRefused, "does not speak TLS"),
        ("TLSV1_ALERT_UNKNOWN_CA", FeederRefused, r"this client's certificate \(unknown ca\)"),
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            FeederRefused,
            r"\(certificate required\); give tls=",
        ),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", FeederRefused, r"\(certificate expired\)"),
        ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", FeederLost, r"broke \(decryption failed or"),
        ("", FeederLost, "broke"),
    ],
)
def test_failures_in_words(reason: str, kind: type[Exception], words: str) -> None:
    found = failure(error(reason), "tls://a:1/x")
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found


def test_a_certificate_that_is_not_to_be_trusted() -> None:
    made = ssl.SSLCertVerificationError(1, "[SSL] whatever")
    made.verify_message = "certificate has expired"
    found = failure(made, "tls://a:1/x")
    assert isinstance(found, FeederRefused)
    assert found.code == "certificate"
    assert str(found).startswith(
        "the certificate of tls://a:1/x is not to be trusted: certificate has expired; check"
    )
