from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import requests
from google.auth import _helpers
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError
from google.oauth2.credentials import Credentials as UserCredentials

from streamrec.errors import AccessDenied, StoreUnavailable
from streamrec.stores.gcs.bearer_token import TOKEN_SECONDS, BearerToken
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping

URL = "gs://bucket/x"


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that google-auth goes by."""
    found = Clock()
    monkeypatch.setattr(
        _helpers, "utcnow", lambda: datetime.fromtimestamp(found(), UTC).replace(tzinfo=None)
    )
    return found


class Scripted(Credentials):
    """Tokens that live so many seconds each; or errors."""

    def __init__(self, clock: Clock, *script: float | Exception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.script = list(script)
        self.refreshes = 0

    def refresh(self, request: Any) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # this blocks: it is not for the loop's thread
        self.refreshes += 1
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        self.token = f"t{self.refreshes}"
        self.expiry = datetime.fromtimestamp(self.clock.now + step, UTC).replace(tzinfo=None)


def bearing(token: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynchronous
async def test_who_gives_out_tokens_may_not_be_silent_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """google-auth waits for two minutes, in a thread that nothing ends."""
    asked = Mock(side_effect=requests.ConnectTimeout("silent"))
    monkeypatch.setattr(requests.Session, "request", asked)
    user = UserCredentials(
        None, refresh_token="r", token_uri="https://oauth2.test", client_id="i", client_secret="s"
    )
    with pytest.raises(StoreUnavailable, match="check the network"):
        await BearerToken(user).headers(URL)
    assert {call.kwargs["timeout"] for call in asked.call_args_list} == {TOKEN_SECONDS}


@asynchronous
async def test_nobody_is_logged_in() -> None:
    bearer = BearerToken(None)
    assert await bearer.headers(URL) == {}
    assert await bearer.headers(URL, {}) == {}
    assert repr(bearer) == "<BearerToken anonymous>"


@asynchronous
async def test_a_token_without_an_end_is_kept() -> None:
    credentials = Scripted(Clock())
    credentials.token = "t"
    bearer = BearerToken(credentials)
    assert await bearer.headers(URL) == bearing("t")
    assert repr(bearer) == "<BearerToken Scripted>"


@asynchronous
async def test_renewed_when_it_has_ended(clock: Clock) -> None:
    credentials = Scripted(clock, 3600, 3600)
    bearer = BearerToken(credentials)
    for later, token in [(0, "t1"), (3599, "t1"), (3600, "t2")]:
        clock.now = 1e9 + later
        assert await bearer.headers(URL) == bearing(token)


@asynchronous
async def test_many_at_once_renew_once(clock: Clock) -> None:
    credentials = Scripted(clock, 3600, 3600)
    bearer = BearerToken(credentials)
    assert await asyncio.gather(*(bearer.headers(URL) for _ in range(50))) == [bearing("t1")] * 50
    renewals = (bearer.headers(URL, bearing("t1")) for _ in range(50))
    assert await asyncio.gather(*renewals) == [bearing("t2")] * 50
    assert credentials.refreshes == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TransportError("untold"), StoreUnavailable),
        (RefreshError("untold", retryable=True), StoreUnavailable),
        (RefreshError("untold"), AccessDenied),
    ],
)
@asynchronous
async def test_what_a_failure_means(error: Exception, kind: type[Exception]) -> None:
    credentials = Scripted(Clock(), error, error)
    bearer = BearerToken(credentials)
    with pytest.raises(kind, match="cannot be renewed") as first:
        await bearer.headers(URL)
    credentials.token = "t0"
    with pytest.raises(kind, match="cannot be renewed") as again:
        await bearer.headers(URL, bearing("t0"))
    for caught in (first, again):
        assert URL in str(caught.value)
        assert "untold" not in str(caught.value)


@asynchronous
async def test_a_failure_leaves_the_next_attempt_free(clock: Clock) -> None:
    credentials = Scripted(clock, TransportError("down"), 3600)
    bearer = BearerToken(credentials)
    with pytest.raises(StoreUnavailable):
        await bearer.headers(URL)
    assert await bearer.headers(URL) == bearing("t2")
