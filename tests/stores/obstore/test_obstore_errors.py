from __future__ import annotations

import pytest

pytest.importorskip("obstore", reason="obstore is not installed; pip install streamrec[obstore]")

from obstore import exceptions as obs

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
from streamrec.stores.obstore.obstore_errors import PastTheEnd, translated


def answer(status: int, code: str = "") -> Exception:
    document = f"<Error><Code>{code}</Code><Message>untold</Message></Error>" if code else ""
    text = f"Generic S3 error: Server returned non-2xx status code: {status} Reason: {document}"
    return obs.GenericError(text)


CASES: dict[str, tuple[Exception, type[StreamrecError]]] = {
    "416": (answer(416, "InvalidRange"), PastTheEnd),
    "503": (answer(503, "SlowDown"), StoreUnavailable),
    "500": (answer(500), StoreUnavailable),
    "400 expired": (answer(400, "ExpiredToken"), AccessDenied),
    "400": (answer(400), StoreError),
    "404": (FileNotFoundError("status code: 404 Not Found: untold"), ObjectNotFound),
    "missing": (FileNotFoundError("untold"), ObjectNotFound),
    "changed": (obs.PreconditionError("untold"), ObjectChanged),
    "denied": (obs.PermissionDeniedError("untold"), AccessDenied),
    "not known": (obs.UnauthenticatedError("untold"), AccessDenied),
    "whole": (obs.GenericError("Received non-partial response when range requested"),
              StoreMisbehaved),
    "other range": (obs.GenericError("Requested 0..10, got 5..15"), StoreMisbehaved),
    "certificate": (obs.GenericError("invalid peer certificate: UnknownIssuer"), StoreError),
    "network": (obs.GenericError("HTTP error: error sending request"), StoreUnavailable),
    "reset": (ConnectionResetError(), StoreUnavailable),
    "option": (obs.UnknownConfigurationKeyError("'x' is not valid"), ConfigError),
    "path": (ValueError("contained empty path segment"), ConfigError),
    "ours": (ObjectNotFound("ours already"), ObjectNotFound),
}  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), CASES.values(), ids=CASES)
def test_meanings(error: Exception, kind: type[StreamrecError]) -> None:
    with pytest.raises(kind) as caught, translated("s3://b/x"):
        raise error
    assert type(caught.value) is kind
    assert "untold" not in str(caught.value)
    if caught.value is not error:
        assert "s3://b/x" in str(caught.value)


def test_nothing_happens_without_an_error() -> None:
    with translated("s3://b/x"):
        pass
    with pytest.raises(KeyboardInterrupt), translated("s3://b/x"):
        raise KeyboardInterrupt
