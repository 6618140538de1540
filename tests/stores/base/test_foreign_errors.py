from __future__ import annotations

import ftplib
import ssl
import tarfile
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from botocore.exceptions import ClientError
from fsspec.exceptions import FSTimeoutError
from multidict import CIMultiDict
from yarl import URL

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.stores.base.foreign_errors import meaning_of, pattern_in, translate_errors

if TYPE_CHECKING:
    from pathlib import Path

URL_WITH_SECRET = "ftp://user:untold@host/x"


def foreign(module: str, name: str, base: type[Exception] = Exception, **facts: Any) -> Exception:
    """Return an error of a library that is not installed."""
    error: Exception = type(name, (base,), {"__module__": module})("untold")
    for fact, value in facts.items():
        setattr(error, fact, value)
    return error


def of_aiohttp(status: int, **headers: str) -> Exception:
    request = aiohttp.RequestInfo(URL("http://h/?sig=untold"), "GET", CIMultiDict(), URL())  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(request, (), status=status, headers=CIMultiDict(headers))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


CASES: dict[str, tuple[Exception, type[StreamrecError]]] = {
    "missing": (FileNotFoundError("untold"), ObjectNotFound),
    "missing directory": (NotADirectoryError(), ObjectNotFound),
    "permission": (PermissionError(), AccessDenied),
    "directory": (IsADirectoryError(), StoreError),
    "fsspec's timeout": (FSTimeoutError(), StoreUnavailable),
    "timeout": (TimeoutError(), StoreUnavailable),
    "reset": (ConnectionResetError(), StoreUnavailable),
    "other I/O": (OSError(5, "Input/output error"), StoreUnavailable),
    "end of connection": (EOFError(), StoreUnavailable),
    "certificate": (ssl.SSLCertVerificationError("untold"), StoreError),
    "other TLS": (ssl.SSLEOFError(), StoreUnavailable),
    "ftp, for now": (ftplib.error_temp("421"), StoreUnavailable),
    "ftp, for good": (ftplib.error_perm("530"), AccessDenied),
    "zip": (zipfile.BadZipFile(), StoreError),
    "tar": (tarfile.ReadError(), StoreError),
    "no ranges": (NotImplementedError(), ConfigError),
    "aiohttp 403": (of_aiohttp(403), AccessDenied),
    "aiohttp 404": (of_aiohttp(404), ObjectNotFound),
    "aiohttp 503": (of_aiohttp(503), StoreUnavailable),
    "aiohttp 412": (of_aiohttp(412), ObjectChanged),
    "aiohttp body": (aiohttp.ClientPayloadError(), StoreUnavailable),
    "azure 404": (foreign("azure.core", "HttpResponseError", status_code=404), ObjectNotFound),
    "azure login": (foreign("azure.core.exceptions", "ClientAuthenticationError"), AccessDenied),
    "azure network": (foreign("azure.core.exceptions", "ServiceRequestError"), StoreUnavailable),
    "gcsfs 429": (foreign("gcsfs.retry", "HttpError", code=429), StoreUnavailable),
    "hub 401": (
        foreign("hub", "HttpError", OSError, response=SimpleNamespace(status_code=401)),
        AccessDenied,
    ),
    "httpx": (foreign("httpx", "TransportError"), StoreUnavailable),
    "requests' TLS": (foreign("requests.exceptions", "SSLError", OSError), StoreError),
    "ssh login": (foreign("paramiko", "AuthenticationException"), AccessDenied),
    "ssh": (foreign("paramiko", "SSHException"), StoreUnavailable),
    "botocore": (
        ClientError({"ResponseMetadata": {"HTTPStatusCode": 403}}, "GetObject"),
        AccessDenied,
    ),
    "found to be denied": (caused(FileNotFoundError("x"), of_aiohttp(403)), AccessDenied),
    "found to be busy": (caused(FileNotFoundError("x"), of_aiohttp(503)), StoreUnavailable),
    "found to be missing": (caused(FileNotFoundError("x"), KeyError("x")), ObjectNotFound),
    "unknown": (RuntimeError("untold"), StoreMisbehaved),
    "a code that is none": (foreign("m", "E", code="NoSuchKey"), StoreMisbehaved),
    "ours": (ObjectNotFound("ours already"), ObjectNotFound),
}  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), CASES.values(), ids=CASES)
def test_meanings(error: Exception, kind: type[StreamrecError]) -> None:
    with pytest.raises(kind) as caught, translate_errors(URL_WITH_SECRET):
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    assert "untold" not in str(caught.value)
    if caught.value is not error:
        assert "ftp://host/x" in str(caught.value)


def test_subclasses_mean_what_their_parents_do() -> None:
    parent = type(foreign("azure.core.exceptions", "ServiceRequestError"))
    child = type("ServiceRequestTimeoutError", (parent,), {"__module__": "azure.core.exceptions"})
    assert type(meaning_of("az://x", child())) is StoreUnavailable


def test_time_to_wait() -> None:
    error = meaning_of("az://x", of_aiohttp(503, **{"Retry-After": "4"}))
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after == 4.0
    answer = SimpleNamespace(status_code=429, headers={"Retry-After": "5"})
    error = meaning_of("hf://x", foreign("requests", "HTTPError", OSError, response=answer))
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after == 5.0


def test_the_pattern_of_the_shards_that_a_directory_has(tmp_path: Path) -> None:
    assert pattern_in(f"{tmp_path}/") == f"{tmp_path}/*.tfrecord"
    for version in ("1.0.0", "2.0.0", "notes"):
        (tmp_path / version).mkdir()
    for version in ("1.0.0", "2.0.0"):
        (tmp_path / version / "mnist-train.tfrecord-00000-of-00001").touch()
    assert pattern_in(str(tmp_path)) == f"{tmp_path}/2.0.0/*.tfrecord*"
    (tmp_path / "2.0.0" / "dataset_info.json").touch()
    folder = f"{tmp_path}/2.0.0"
    version = f'{folder}/*.tfrecord*, or give the TFDS dataset {folder} with split="train"'
    assert pattern_in(str(tmp_path)) == version
    (tmp_path / "a.tfrecord").touch()
    assert pattern_in(str(tmp_path)) == f"{tmp_path}/*.tfrecord"


def test_nothing_happens_without_an_error() -> None:
    with translate_errors("az://x"):
        pass
    with pytest.raises(KeyboardInterrupt), translate_errors("az://x"):
        raise KeyboardInterrupt
