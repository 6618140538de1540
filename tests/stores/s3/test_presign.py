from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiobotocore.session import AioSession

from streamrec.errors import AccessDenied
from streamrec.stores.s3 import presign
from streamrec.stores.s3.presign import LIFETIME, Presigner, get_object, list_objects
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CUSTOMER = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
LISTING = list_objects("bucket", "train-", "/", "token")
OPTIONS = {"key": "test", "secret": "testsecret", "endpoint_url": "http://127.0.0.1:1"}


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC).timestamp()

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(options: dict[str, Any], **settings: Any) -> AsyncIterator[Presigner]:
    presigner = Presigner(options, **settings)
    try:
        yield presigner
    finally:
        await presigner.aclose()


def query_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


@asynchronous
async def test_signature() -> None:
    async with opened({**OPTIONS, "token": "token"}, region="eu-west-3") as presigner:
        signed, fresh = await presigner.sign("s3://b/k", get_object("bucket", "a b/ü+%#?.tfrecord"))
    assert fresh
    assert urlsplit(signed.address).path == "/bucket/a%20b/%C3%BC%2B%25%23%3F.tfrecord"
    query = query_of(signed.address)
    assert query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert query["X-Amz-Credential"].split("/")[2:] == ["eu-west-3", "s3", "aws4_request"]
    assert query["X-Amz-Security-Token"] == "token"
    assert query["X-Amz-Expires"] == "3600"
    assert query["X-Amz-SignedHeaders"] == "host"


@pytest.mark.parametrize(
    ("region", "bucket", "host"),
    [
        ("eu-west-3", "bucket", "bucket.s3.eu-west-3.amazonaws.com/key"),
        ("eu-west-3", "with.dots", "s3.eu-west-3.amazonaws.com/with.dots/key"),
        (None, "bucket", "bucket.s3.amazonaws.com/key"),
    ],
)
@asynchronous
async def test_hosts_of_aws(region: str | None, bucket: str, host: str) -> None:
    async with opened({"key": "a", "secret": "b"}, region=region) as presigner:
        signed, _ = await presigner.sign("s3://b/k", get_object(bucket, "key"))
    assert signed.address.startswith(f"https://{host}?")
    scope = query_of(signed.address)["X-Amz-Credential"].split("/")
    assert scope[2] == (region or "us-east-1")


@asynchronous
async def test_kept_until_half_its_life_is_over() -> None:
    clock = Clock()
    async with opened(OPTIONS, clock=clock) as presigner:
        first, fresh = await presigner.sign("s3://b/k", get_object("bucket", "key"))
        assert fresh
        clock.now += LIFETIME / 2 - 1
        assert await presigner.sign("s3://b/k", get_object("bucket", "key")) == (first, False)
        clock.now += 2
        _, fresh = await presigner.sign("s3://b/k", get_object("bucket", "key"))
        assert fresh


@asynchronous
async def test_objects_are_kept_apart_and_forgotten() -> None:
    async with opened(OPTIONS) as presigner:
        one, _ = await presigner.sign("", get_object("bucket", "one"))
        two, fresh = await presigner.sign("", get_object("bucket", "two"))
        assert fresh
        assert one.address != two.address
        presigner.forget(get_object("bucket", "one"))
        presigner.forget(get_object("bucket", "one"))
        assert (await presigner.sign("", get_object("bucket", "one")))[1]
        assert not (await presigner.sign("", get_object("bucket", "two")))[1]


@asynchronous
async def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presign, "MAX_KEPT", 2)
    async with opened(OPTIONS) as presigner:
        for key in ("one", "two", "three"):
            await presigner.sign("", get_object("bucket", key))
        assert [key for _, key in presigner._kept] == ["two", "three"]


@asynchronous
async def test_unsigned() -> None:
    async with opened({**OPTIONS, "anon": True}) as presigner:
        signed, _ = await presigner.sign("", get_object("bucket", "key"))
    assert signed.address == "http://127.0.0.1:1/bucket/key"


@asynchronous
async def test_no_credentials() -> None:
    async with opened({"endpoint_url": "http://127.0.0.1:1"}) as presigner:
        with pytest.raises(AccessDenied) as caught:
            await presigner.sign("s3://bucket/key", get_object("bucket", "key"))
    assert caught.value.url == "s3://bucket/key"


@asynchronous
async def test_own_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"config_kwargs": {"s3": {"addressing_style": "virtual"}, "read_timeout": 3}}
    async with opened({**OPTIONS, **own, "endpoint_url": "http://host:1"}) as presigner:
        signed, _ = await presigner.sign("", get_object("bucket", "key"))
        assert signed.address.startswith("http://bucket.host:1/key?X-Amz-Algorithm")


@asynchronous
async def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fromoutside")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testsecret")
    async with opened({"endpoint_url": "http://127.0.0.1:1"}) as presigner:
        signed, _ = await presigner.sign("", get_object("bucket", "key"))
    query = query_of(signed.address)
    assert query["X-Amz-Credential"].startswith("fromoutside/")
    assert query["X-Amz-Expires"] == "3600"


@asynchronous
async def test_listings_are_not_kept() -> None:
    async with opened(OPTIONS) as presigner:
        await presigner.sign("", list_objects("bucket", "train-", "/", ""))
        signed, fresh = await presigner.sign("", list_objects("bucket", "train-", "/", ""))
    assert fresh
    query = query_of(signed.address)
    assert (query["list-type"], query["prefix"]) == ("2", "train-")
    assert not presigner._kept


@asynchronous
async def test_a_listing() -> None:
    async with opened(OPTIONS) as presigner:
        signed, _ = await presigner.sign("", LISTING)
    asked = {name: value for name, value in query_of(signed.address).items() if "Amz" not in name}
    assert asked == {
        "list-type": "2",
        "encoding-type": "url",
        "prefix": "train-",
        "delimiter": "/",
        "continuation-token": "token",
    }
    assert urlsplit(signed.address).path == "/bucket"
    assert signed.headers == {}


@asynchronous
async def test_each_operation_has_headers_of_its_own() -> None:
    options = {**OPTIONS, "requester_pays": True, "s3_additional_kwargs": CUSTOMER}
    async with opened(options) as presigner:
        for key in ("one", "two"):
            listing, _ = await presigner.sign("", LISTING)
            reading, _ = await presigner.sign("", get_object("bucket", key))
            assert set(listing.headers) == {"x-amz-request-payer"}
            assert len(reading.headers) == 4
            assert set(listing.headers) < set(reading.headers)


@asynchronous
async def test_many_at_once_look_look_for_credentials_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "testsecret"}
    script = tmp_path / "fetch.py"
    script.write_text(
        f"open({str(tmp_path / 'calls')!r}, 'a').write('x')\nprint({json.dumps(answer)!r})"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with opened({"endpoint_url": "http://127.0.0.1:1"}) as presigner:
        calls = [get_object("bucket", f"{number}") for number in range(20)]
        await asyncio.gather(*(presigner.sign("", call) for call in calls))
    assert (tmp_path / "calls").read_text() == "x"


@asynchronous
async def test_a_session_of_the_users_own() -> None:
    session = AioSession()
    session.set_credentials("own", "secret")
    async with opened({"session": session, "endpoint_url": "http://127.0.0.1:1"}) as presigner:
        signed, _ = await presigner.sign("", get_object("bucket", "key"))
        await presigner.renew("s3://b/x", signed)
        again, _ = await presigner.sign("", get_object("bucket", "key"))
    for one in (signed, again):
        assert query_of(one.address)["X-Amz-Credential"].startswith("own/")


@asynchronous
async def test_renewed_keys_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testsecret")
    async with opened({"endpoint_url": "http://127.0.0.1:1"}) as presigner:
        old, _ = await presigner.sign("", get_object("bucket", "key"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
        await presigner.renew("s3://b/x", old)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "newer")
        await presigner.renew("s3://b/x", old)
        new, fresh = await presigner.sign("", get_object("bucket", "key"))
    assert fresh
    assert new.era == old.era + 1
    keys = [query_of(one.address)["X-Amz-Credential"].partition("/")[0] for one in (old, new)]
    assert keys == ["old", "new"]


@asynchronous
async def test_a_profile_that_comes_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testsecret")
    async with opened({"endpoint_url": "http://127.0.0.1:1"}) as presigner:
        old, _ = await presigner.sign("", get_object("bucket", "key"))
        keys = "aws_access_key_id = new\naws_secret_access_key = secret\n"
        (tmp_path / "credentials").write_text(f"[default]\n{keys}")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        await presigner.renew("s3://b/x", old)
        new, _ = await presigner.sign("", get_object("bucket", "key"))
    assert query_of(new.address)["X-Amz-Credential"].startswith("new/")


@asynchronous
async def test_a_bucket_whose_name_is_no_host_is_left_to_botocore() -> None:
    """Between two calls of one signer: the others need no client."""
    async with opened({"key": "a", "secret": "b"}, region="eu-west-3") as presigner:
        hosts = [
            urlsplit((await presigner.sign("", get_object(bucket, "key")))[0].address).netloc
            for bucket in ("one", "with.dots", "two")
        ]
    assert hosts == [f"{bucket}s3.eu-west-3.amazonaws.com" for bucket in ("one.", "", "two.")]
