from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import pytest
from aiobotocore.session import AioSession
from botocore.credentials import EnvProvider

from streamrec.errors import AccessDenied
from streamrec.stores.s3 import presign
from streamrec.stores.s3.presign import (
    LIFETIME,
    PlainSigner,
    Presigner,
    get_object,
    list_objects,
    plain_terms,
)
from streamrec.stores.s3.s3_sdk import SdkSigner
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


NOW = datetime(2026, 11, 28, 5, 6, 7)  # noqa: DTZ001 - as botocore's
KEYS = {"key": "AK", "secret": "secret"}
ENDPOINT = {**KEYS, "endpoint_url": "http://127.0.0.1:1"}
ENDPOINTS = [None, "http://127.0.0.1:1", "https://Minio.example.com/", "http://[::1]:9000"]
PORTS = ["http://h:80", "https://h:443/", "https://h:80", "http://[::1]:080", "http://[::1]"]
REGIONS = [None, "eu-west-3", "us-east-1", "us-west-2", "cn-north-1", "us-gov-west-1", "auto"]
ODD_REGIONS = [" ", "eu-west-3 ", "eu_west_3", "x y", "12", "fips-us-east-1", "us-east-1-fips"]
ODD_ENDPOINTS = [
    *("http://h ", " http://h", "http://h\n", "http://h;x", "http://h\\x", "http://h_x:1"),
    *("http://h%20x", "http://ü.example", "http://h?", "http://h#", "http://h:", "http://h:99999"),
]
BUCKETS = ["bucket", "with.dots", "a-b-c", "a--ol-s3", "a-s3alias", "Upper"]


WHO = [KEYS, {**KEYS, "token": "to/k=n"}, {"anon": True}]


@pytest.mark.parametrize(
    ("endpoint", "region", "who"),
    [*product(ENDPOINTS, REGIONS, WHO), *((endpoint, None, KEYS) for endpoint in PORTS)],
)
@asynchronous
async def test_botocore_signs_the_same(
    endpoint: str | None, region: str | None, who: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW)
    options = {**who, **({"endpoint_url": endpoint} if endpoint else {})}
    terms = await asyncio.to_thread(plain_terms, options, region, {})
    assert (terms is not None) == (endpoint is not None or region in {"eu-west-3", "us-west-2"})
    if terms is None:
        return
    clock = NOW.replace(tzinfo=UTC).timestamp
    signer, sdk = PlainSigner(terms, clock), SdkSigner(options, region)
    await sdk.prepare()
    try:
        for bucket in filter(signer.fits, BUCKETS):
            for call in (
                get_object(bucket, "a b/ü+%#?~!*'().tfrecord"),
                get_object(bucket, "//x/../y"),
                list_objects(bucket, "tr ain-/ü+&", "/", "tok/en=="),
                list_objects(bucket, "", "", "", "af ter"),
            ):
                theirs, headers = await sdk.sign(call.method, call.parameters, 600)
                assert signer.sign(call.method, call.parameters, 600) == theirs
                assert not headers
    finally:
        await sdk.aclose()


@pytest.mark.parametrize(
    ("endpoint", "fitting"),
    [(None, {"bucket", "a-b-c"}), ("http://h:1", {*BUCKETS} - {"Upper"})],
)
def test_the_buckets(endpoint: str | None, fitting: set[str]) -> None:
    terms = plain_terms({**KEYS, "endpoint_url": endpoint}, "eu-west-3", {})
    assert terms is not None
    assert set(filter(PlainSigner(terms).fits, BUCKETS)) == fitting


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({**ENDPOINT, "profile": "p"}, {}),
        ({**ENDPOINT, "requester_pays": True}, {}),
        ({**ENDPOINT, "config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {}),
        ({**ENDPOINT, "client_kwargs": {"use_ssl": False}}, {}),
        ({**ENDPOINT, "session": object()}, {}),
        ({**ENDPOINT, "secret": None}, {}),
        ({**ENDPOINT, "key": ""}, {}),
        ({"endpoint_url": "http://h:1", "token": "t"}, {}),
        ({"endpoint_url": "http://h:1"}, {}),
        ({"endpoint_url": "http://h:1"}, {"AWS_ACCESS_KEY_ID": "a"}),
        ({**KEYS, "endpoint_url": "h:1"}, {}),
        ({**KEYS, "endpoint_url": "http://h:1/path"}, {}),
        ({**KEYS, "endpoint_url": "http://u:p@h:1"}, {}),
        ({**KEYS, "endpoint_url": "http://h:x"}, {}),
        ({**KEYS, "endpoint_url": "https://s3.eu-west-3.amazonaws.com"}, {}),
        (ENDPOINT, {"AWS_PROFILE": "p"}),
        (ENDPOINT, {"AWS_USE_FIPS_ENDPOINT": "true"}),
        (ENDPOINT, {"AWS_SECURITY_TOKEN": "t"}),
        (ENDPOINT, {"FSSPEC_S3_ENDPOINT_URL": "http://other"}),
        (ENDPOINT, {"AWS_CONFIG_FILE": __file__}),
        (ENDPOINT, {"AWS_DEFAULT_REGION": ""}),
        ({**ENDPOINT, "client_kwargs": {"region_name": ""}}, {"AWS_DEFAULT_REGION": "x"}),
        *(({**ENDPOINT, "client_kwargs": {"region_name": name}}, {}) for name in ODD_REGIONS),
        *(({**KEYS, "endpoint_url": endpoint}, {}) for endpoint in ODD_ENDPOINTS),
        (KEYS, {}),
    ],
)
def test_all_else_is_left_to_botocore(options: dict[str, Any], variables: dict[str, str]) -> None:
    assert plain_terms(options, None, variables) is None


@pytest.mark.parametrize("name", [".aws/config", ".aws/credentials", ".config/fsspec/conf.json"])
def test_files_at_home_are_left_to_the_libraries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plain_terms(ENDPOINT, None, {}) is not None
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    assert plain_terms(ENDPOINT, None, {}) is None


@pytest.mark.parametrize("place", ["~/config", "$HOME/config", "${HOME}/config"])
@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
def test_paths_of_files_are_expanded_as_botocore_does(
    variable: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plain_terms(ENDPOINT, None, {variable: place}) is not None
    (tmp_path / "config").touch()
    assert plain_terms(ENDPOINT, None, {variable: place}) is None


@pytest.mark.parametrize(
    ("variables", "endpoint", "region"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://b", "AWS_ENDPOINT_URL": "http://c"}, "http://b", None),
        ({"AWS_ENDPOINT_URL": "http://c", "AWS_DEFAULT_REGION": "x"}, "http://c", "x"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, None, "eu-west-3"),
    ],
)
def test_the_environment(variables: dict[str, str], endpoint: str, region: str | None) -> None:
    terms = plain_terms(KEYS, None, variables)
    assert terms is not None
    assert (terms.endpoint, terms.region) == (endpoint, region or "us-east-1")


@pytest.mark.parametrize("token", ["", "to/k=n"])
def test_the_keys_of_the_environment(token: str) -> None:
    named = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": token}
    theirs = EnvProvider(named).load()
    assert theirs is not None
    options = {"endpoint_url": "http://h"}
    for given, keys in (
        (options, (theirs.access_key, theirs.secret_key, theirs.token)),
        ({**ENDPOINT}, ("AK", "secret", None)),
        ({**options, "anon": True}, None),
    ):
        terms = plain_terms(given, None, named)
        assert terms is not None
        assert terms.keys == keys


def test_the_options_precede_the_environment() -> None:
    variables = {"AWS_ENDPOINT_URL": "http://c", "AWS_DEFAULT_REGION": "x"}
    options = {**ENDPOINT, "client_kwargs": {"region_name": "y"}}
    own, other = plain_terms(options, None, variables), plain_terms(options, "z", variables)
    assert own is not None
    assert other is not None
    assert (own.endpoint, own.region, other.region) == ("http://127.0.0.1:1", "y", "z")
    assert "secret" not in repr(own)


def test_settings_of_fsspec_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["fsspec.config"].conf, "s3", {"anon": True})
    assert plain_terms(ENDPOINT, None, {}) is None


def test_neither_s3fs_nor_botocore_is_imported() -> None:
    code = """if True:
        import sys
        from streamrec.stores.s3.presign import PlainSigner, plain_terms
        from streamrec.stores.s3.s3_store import S3Store
        options = {"key": "a", "secret": "b", "endpoint_url": "http://h"}
        signer = PlainSigner(plain_terms(options, None, {}))
        assert "Signature" in signer.sign("get_object", {"Bucket": "bucket", "Key": "k"}, 9)
        heavy = {"s3fs", "fsspec", "aiobotocore", "botocore", "urllib3", "dateutil"}
        print(sorted(heavy & sys.modules.keys()))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
