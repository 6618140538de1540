"""Credentials that end: assumed roles, and those that another process replaces."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreError
from streamrec.stores.s3.presign import get_object
from tests.stores.conformance import DATA, read
from tests.stores.s3.test_presign import Clock
from tests.stores.s3.test_s3_store import opened
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streamrec.stores.s3.s3_store import S3Store

ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>
<SessionToken>token</SessionToken><Expiration>{expiry}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>r:s</AssumedRoleId>
</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"""
EXPIRED = FaultRule(status=400, code="ExpiredToken", nth=1)


def keys_of(devstore: DevStore) -> list[tuple[str, int]]:
    return [
        (each.query["X-Amz-Credential"].partition("/")[0], each.status)
        for each in devstore.statistics.records
    ]


@asynccontextmanager
async def token_service(minutes: float, clock: Clock) -> AsyncIterator[str]:
    """Serve keys role1, role2, … that live that long, by that clock."""
    count = 0

    async def assume(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        expiry = datetime.fromtimestamp(clock.now + minutes * 60, UTC).isoformat()
        text = ASSUMED.format(key=f"role{count}", expiry=expiry)
        return web.Response(text=text, content_type="text/xml")

    application = web.Application()
    application.router.add_post("/", assume)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynchronous
async def test_assumed_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile base]\naws_access_key_id = test\naws_secret_access_key = testsecret\n"
        "[profile ours]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
        "region = us-east-1\n"
    )
    clock = Clock()
    roles = {f"role{n}": "secret" for n in range(9)}
    async with token_service(60, clock) as service, DevStore(keys=roles) as devstore:
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service)
        devstore.put("bucket/x", DATA)
        options = {"profile": "ours", "endpoint_url": devstore.endpoint}
        async with opened(options, clock=clock) as store:
            await read(store, "s3://bucket/x", 0, 10)
            await read(store, "s3://bucket/x", 10, 20)
        assert keys_of(devstore) == [("role1", 206)] * 2


@asynccontextmanager
async def replaced_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[S3Store, DevStore]]:
    """Yield a store whose credentials file names ``old`` at first, and ``new`` afterwards."""
    script = tmp_path / "fetch.py"
    answer = {"Version": 1, "SecretAccessKey": "secret"}
    script.write_text(
        "import pathlib, json\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        f"answer = json.loads({json.dumps(answer)!r})\n"
        "answer['AccessKeyId'] = 'new' if seen.exists() else 'old'\n"
        "seen.touch()\nprint(json.dumps(answer))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with DevStore(keys={"old": "secret", "new": "secret"}) as devstore:
        devstore.put("bucket/x", DATA)
        devstore.put("bucket/y", DATA)
        async with opened({"endpoint_url": devstore.endpoint}) as store:
            yield store, devstore


@asynchronous
async def test_expired_credentials_are_found_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replaced_credentials(tmp_path, monkeypatch) as (store, devstore):
        devstore.faults = [EXPIRED]
        for name in ("x", "x", "y"):
            assert (await read(store, f"s3://bucket/{name}", 0, 10))[0] == DATA[:10]
        assert keys_of(devstore) == [("old", 400), ("new", 206), ("new", 206), ("new", 206)]
        assert [info.url async for info in store.list("s3://bucket/x")] == ["s3://bucket/x"]


@asynchronous
async def test_a_listing_with_expired_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replaced_credentials(tmp_path, monkeypatch) as (store, devstore):
        devstore.faults = [EXPIRED]
        assert [info.url async for info in store.list("s3://bucket/x")] == ["s3://bucket/x"]
        assert keys_of(devstore) == [("old", 400), ("new", 200)]


@asynchronous
async def test_many_that_expire_at_once_are_renewed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replaced_credentials(tmp_path, monkeypatch) as (store, _):
        signer = store._signer("bucket")
        first, _ = await signer.sign("", get_object("bucket", "x"))
        await signer.renew("s3://b/x", first)
        await signer.renew("s3://b/x", first)
        assert signer._era == 1
        second, fresh = await signer.sign("", get_object("bucket", "x"))
        assert fresh
        assert "new%2F" in second.address


@pytest.mark.parametrize(
    ("fault", "kind", "count"),
    [
        ({"status": 400, "code": "ExpiredToken"}, AccessDenied, 2),
        ({"status": 403, "code": "AccessDenied"}, AccessDenied, 1),
        ({"status": 404, "code": "NoSuchKey"}, ObjectNotFound, 1),
        ({"status": 412, "code": "PreconditionFailed"}, ObjectChanged, 1),
    ],
    ids=["expired for good", "denied", "missing", "changed"],
)
@asynchronous
async def test_what_will_not_pass_fails_at_once(
    fault: dict[str, Any], kind: type[StoreError], count: int
) -> None:
    async with DevStore() as devstore, opened(devstore.storage_options) as store:
        devstore.faults = [FaultRule.model_validate(fault)]
        with pytest.raises(kind) as caught:
            await read(store, "s3://bucket/x", 0, 10)
        assert type(caught.value) is kind
        assert not caught.value.retryable
        assert len(devstore.statistics.records) == count
