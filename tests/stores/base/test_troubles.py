"""One table: a trouble, and what a reader, a lister and a writer are told, on each store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import botocore.session
import fsspec
import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
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
from streamrec.stores.base.foreign_errors import meaning_of
from streamrec.stores.base.troubles import (
    _BY_CODE,
    _BY_STATUS,
    TROUBLES,
    Expired,
    WrongRegion,
    code_of,
    refusal,
    seconds_to_wait,
    tell,
)
from streamrec.stores.blocking import Folder, write_object
from streamrec.stores.gcs.gcs_store import GCSStore
from streamrec.stores.http.http_store import HttpStore
from streamrec.stores.open import Stores
from streamrec.stores.s3 import presign
from streamrec.stores.s3.s3_store import S3Store
from streamrec.stores.stored_files import find_files
from tests.stores.conformance import read
from tests.stores.s3.test_s3_store import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, StoreError),
        (401, AccessDenied),
        (403, AccessDenied),
        (404, ObjectNotFound),
        (405, StoreError),
        (407, AccessDenied),
        (408, StoreUnavailable),
        (410, ObjectNotFound),
        (412, ObjectChanged),
        (429, StoreUnavailable),
        (500, StoreUnavailable),
        (501, StoreError),
        (502, StoreUnavailable),
        (503, StoreUnavailable),
        (504, StoreUnavailable),
        (507, StoreError),
    ],
)
def test_statuses(status: int, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status)
    assert type(error) is kind
    assert error.retryable == (kind is StoreUnavailable)
    assert error.url == "s3://b/x"
    assert f"({status})" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "RequestTimeout", StoreUnavailable),
        (400, "ExpiredToken", AccessDenied),
        (403, "InvalidObjectState", StoreError),
        (400, "KMS.DisabledException", StoreError),
        (403, "QuotaExceeded", StoreError),
        (404, "NoSuchBucket", ObjectNotFound),
        (404, "NoSuchElephant", ObjectNotFound),
        (503, "Elephant", StoreUnavailable),
        (400, "Elephant", StoreError),
    ],
)
def test_codes_say_more_than_statuses(status: int, code: str, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status, code=code)
    assert type(error) is kind
    assert f"({status} {code})" in str(error)


def test_a_key_that_is_denied_is_not_the_bucket() -> None:
    message = "User: x is not authorized to perform: kms:Decrypt on resource: y"
    document = f"<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>".encode()
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, "PutObject")
    told = (
        refusal("s3://b/x", 403, code=code_of(document)),
        meaning_of("s3://b/x", error, writing=True),
    )
    for one in told:
        assert type(one) is StoreError
        assert re.search("KMS key that encrypts.*AccessDenied by KMS", str(one))


def test_time_to_wait_is_kept() -> None:
    error = refusal("s3://b/x", 503, retry_after=7.0)
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after == 7.0


@pytest.mark.parametrize(
    ("status", "kind"), [(301, WrongRegion), (400, WrongRegion), (403, AccessDenied)]
)
def test_regions(status: int, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status, region="eu-west-3", signed=True)
    assert type(error) is kind
    assert getattr(error, "region", "eu-west-3") == "eu-west-3"
    assert type(refusal("s3://b/x", status, region="eu-west-3")) in (StoreError, AccessDenied)


@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
def test_expired_credentials(code: str) -> None:
    assert type(refusal("s3://b/x", 400, code=code, signed=True)) is Expired
    assert type(refusal("s3://b/x", 400, code=code)) is AccessDenied


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (
            b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>m</Message></Error>',
            "NoSuchKey",
        ),
        (b"<Error>\n  <Code>SlowDown</Code>", "SlowDown"),
        (b"<Error><Code>Slow", None),
        (b"<html><Code>x</Code></html>", None),
        (b"", None),
        (b'{"error": {"code": 404, "errors": [{"reason": "notFound"}]}}', "notFound"),
        (
            b'{"error": {"code": 403, "errors": [{\n"reason":"rateLimitExceeded"',
            "rateLimitExceeded",
        ),
        (b'{"reason": "notFound"}', None),
        (
            b"Bucket is a requester pays bucket but no user project provided.",
            "UserProjectMissing",
        ),
    ],
)
def test_code_of(document: bytes, code: str | None) -> None:
    assert code_of(document) == code


@given(st.binary())
def test_any_document(document: bytes) -> None:
    code_of(document)
    code_of(b"<Error><Code>" + document)


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("-1", None),
        ("inf", None),
        ("soon", None),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
    ],
)
def test_seconds_to_wait(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds


@given(st.text())
@example("0\x1f")
def test_any_header(header: str) -> None:
    assert (seconds_to_wait(header, NOW) or 0.0) >= 0


CEPH = os.environ.get("STREAMREC_TEST_S3_ENDPOINT")
CLOSED = "http://127.0.0.1:9"


class Row(NamedTuple):
    """What is told of a trouble."""

    kind: type[StreamrecError]
    words: str
    """A regular expression that the whole message matches somewhere."""
    retryable: bool = False


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def store_of(url: str, options: dict[str, Any]) -> Any:
    if url.startswith("s3://"):
        return S3Store(options, sleep=no_sleep)
    return GCSStore(options, sleep=no_sleep) if url.startswith("gs://") else Stores(options)


def reading(url: str, options: dict[str, Any]) -> None:
    async def run() -> None:
        store = store_of(url, options)
        try:
            await read(store if not isinstance(store, Stores) else store.store_for(url), url, 0, 4)
        finally:
            await store.aclose()

    asyncio.run(run())


def listing(url: str, options: dict[str, Any]) -> None:
    async def run() -> None:
        store = store_of(url, options)
        listed = store if not isinstance(store, Stores) else store.store_for(url)
        try:
            async for _ in listed.list(url):
                pass
        finally:
            await store.aclose()

    asyncio.run(run())


def writing(url: str, options: dict[str, Any]) -> None:
    write_object(url, b"data", options)


def deleting(url: str, options: dict[str, Any]) -> None:
    async def run() -> None:
        stores = Stores(options)
        try:
            await stores.store_for(url).delete(url)
        finally:
            await stores.aclose()

    asyncio.run(run())


class Waiting:
    """asyncio for gcsfs, which notes how long it would wait, and does not."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        self._waits.append(seconds)


WAYS = [reading, listing, writing, deleting]


def told(way: Any, url: str, options: dict[str, Any]) -> StreamrecError:
    with pytest.raises(StreamrecError) as caught:
        way(url, options)
    assert caught.value.__cause__ is None, "a library's error may hold a signed URL"
    return caught.value


def check(error: StreamrecError, row: Row) -> None:
    assert (type(error), error.retryable) == (row.kind, row.retryable), error
    assert re.search(row.words, str(error)), error


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no library try again, and none give what it has kept of an earlier test."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setattr("gcsfs.core.GCSFileSystem.retries", 1)
    for scheme in ("s3", "gcs"):
        fsspec.get_filesystem_class(scheme).clear_instance_cache()


@contextmanager
def devstore(*faults: FaultRule) -> Iterator[DevStore]:
    with DevStore(keys={KEYS["key"]: KEYS["secret"]}) as store:
        store.objects.create_bucket("bucket")
        store.objects["bucket/x"] = b"data"
        store.faults = list(faults)
        yield store


def s3(store: DevStore | str, **options: Any) -> dict[str, Any]:
    endpoint = store if isinstance(store, str) else store.endpoint
    return {**KEYS, "endpoint_url": endpoint, **options}


TEXTS = ("key", "secret", "token", "profile", "endpoint_url")
ANONYMOUS = Row(AccessDenied, "no credentials were sent.*give some in storage_options")

REFUSALS: dict[tuple[int, str], Row] = {
    (403, "AccessDenied"): Row(AccessDenied, "check them and the bucket's policy"),
    (403, "InvalidAccessKeyId"): Row(AccessDenied, "does not accept these credentials"),
    (403, "SignatureDoesNotMatch"): Row(AccessDenied, "check key, secret, token"),
    (403, "RequestTimeTooSkewed"): Row(AccessDenied, "set this machine's clock right"),
    (400, "ExpiredToken"): Row(AccessDenied, "have expired; renew them"),
    (400, "AuthorizationHeaderMalformed"): Row(StoreError, "another region; set region_name"),
    (301, "PermanentRedirect"): Row(StoreError, "another region; set region_name"),
    (404, "NoSuchBucket"): Row(ObjectNotFound, "no such bucket"),
    (400, "KMS.DisabledException"): Row(StoreError, "the KMS key.*enable the key"),
    (403, "QuotaExceeded"): Row(StoreError, "quota of the store.*raise it"),
    (503, "SlowDown"): Row(StoreUnavailable, "asks to slow down", True),
    (500, "InternalError"): Row(StoreUnavailable, "internal error", True),
}


class EarlySigner(presign.PlainSigner):
    """A signer whose clock is five hours slow."""

    def __init__(self, terms: presign.PlainTerms) -> None:
        super().__init__(terms, lambda: time.time() - 5 * 3600)


class TestS3:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(("status", "code"), REFUSALS)
    def test_a_refusal(self, way: Any, status: int, code: str) -> None:
        region = {"x-amz-bucket-region": "eu-west-3"} if status == 301 else {}
        with devstore(FaultRule(status=status, code=code, headers=region)) as store:
            if way is deleting and status == 404:
                way("s3://bucket/x", s3(store))
                return
            check(told(way, "s3://bucket/x", s3(store)), REFUSALS[status, code])

    @pytest.mark.parametrize("way", WAYS)
    def test_it_is_down(self, way: Any) -> None:
        row = Row(StoreUnavailable, "connect to 127.0.0.1:9: Connection refused", True)
        check(told(way, "s3://bucket/x", s3(CLOSED)), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_no_credentials(self, way: Any) -> None:
        row = Row(AccessDenied, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.*key and secret.*anon")
        check(told(way, "s3://bucket/x", {"endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", [reading, listing])
    def test_a_clock_that_is_wrong(self, way: Any) -> None:
        with devstore() as store, pytest.MonkeyPatch.context() as patch:
            patch.setattr(presign, "PlainSigner", EarlySigner)
            error = told(way, "s3://bucket/x", s3(store))
        check(error, Row(AccessDenied, "set this machine's clock right"))

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("more", [{}, {"version_aware": True}])
    def test_anonymous(self, way: Any, more: dict[str, Any]) -> None:
        with devstore() as store:
            options = {"endpoint_url": store.endpoint, "anon": True}
            check(told(way, "s3://bucket/x", options | more), ANONYMOUS)

    @pytest.mark.parametrize(
        "call",
        [
            lambda folder: folder.read("x"),
            lambda folder: folder.sizes(),
            lambda folder: folder.remove("x"),
            lambda folder: find_files(folder.url("*"), folder.options),
        ],
    )
    def test_a_tool_s_anonymous_calls(self, call: Callable[[Folder], object]) -> None:
        with devstore() as store:
            folder = Folder("s3://bucket/", {"endpoint_url": store.endpoint, "anon": True})
            with pytest.raises(AccessDenied, match=ANONYMOUS.words):
                call(folder)

    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("s3://bucket", "this names no object; write s3://bucket/object"),
            ("s3://bucket/", "this names no object; write s3://bucket/object"),
            ("s3:///x", "this names no bucket; write s3://bucket/object"),
            ("s3://a b/x", "this is not a valid name of an S3 bucket"),
        ],
    )
    def test_a_url_that_names_no_object(self, way: Any, url: str, words: str) -> None:
        check(told(way, url, s3(CLOSED)), Row(ConfigError, f"^{url}: {words}"))

    def test_a_directory(self) -> None:
        row = Row(StoreError, "this is a directory; name a file in it")
        check(told(writing, "s3://bucket/x/", s3(CLOSED)), row)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            *(({name: 12345}, f"'{name}' must be text, not int$") for name in TEXTS),
            ({"client_kwargs": {"region_name": 5}}, "'region_name' must be text"),
            (
                {"config_kwargs": {"max_pool_connections": 0}},
                "'max_pool_connections' must be a number from 1 up, not 0",
            ),
            ({"config_kwargs": {"read_timeout": "1"}}, "'read_timeout' must be a number of sec"),
            ({"config_kwargs": {"retires": 1}}, "'config_kwargs' has no 'retires'"),
            ({"client_kwargs": {"regoin": 1}}, "'client_kwargs' has no 'regoin'"),
        ],
    )
    def test_a_value_of_another_kind(self, way: Any, options: dict[str, Any], words: str) -> None:
        error = told(way, "s3://bucket/x", s3(CLOSED) | options)
        check(error, Row(ConfigError, f"^storage_options: {words}"))

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("form", ["legacy", "session", "expired"])
    def test_an_sso_session(
        self, way: Any, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        start, own = "sso_start_url = https://127.0.0.1:9/start\nsso_region = us-east-1\n", ""
        if form == "session":
            start, own = "sso_session = own\n", f"[sso-session own]\n{start}"
        account = "sso_account_id = 123456789012\nsso_role_name = x\n"
        (tmp_path / "config").write_text(f"[default]\n{account}{start}{own}")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        if form == "expired":
            token = {"accessToken": "untold", "expiresAt": "2020-01-01T00:00:00Z"}
            monkeypatch.setattr("botocore.utils.SSOTokenLoader.__call__", lambda *_, **__: token)
        error = told(way, "s3://bucket/x", {"endpoint_url": CLOSED})
        check(error, Row(AccessDenied, "SSO session has expired.*run aws sso login"))

    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_token_file(self, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/none/token")
        row = Row(AccessDenied, "file /var/run/none/token of AWS_WEB_IDENTITY_TOKEN_FILE cannot")
        check(told(way, "s3://bucket/x", {"endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_credential_process(
        self, way: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "config").write_text("[default]\ncredential_process = /no/such/program\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        row = Row(AccessDenied, "/no/such/program cannot be read")
        check(told(way, "s3://bucket/x", {"endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("process", ["/bin/false", "/bin/echo no"])
    def test_a_credential_process_that_fails(
        self, way: Any, process: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "config").write_text(f"[default]\ncredential_process = {process}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        row = Row(AccessDenied, "the program of credential_process failed .it gave no")
        check(told(way, "s3://bucket/x", {"endpoint_url": CLOSED}), row)

    def test_a_program_that_the_loop_does_not_name(self) -> None:
        # So uvloop tells of a program that is missing.
        error = meaning_of("s3://bucket/x", FileNotFoundError(2, "No such file or directory"))
        check(error, Row(AccessDenied, "credential_process failed .No such file"))

    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_credentials_file(self, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
        row = Row(AccessDenied, "AWS_SHARED_CREDENTIALS_FILE names /no/such/file, which does not")
        check(told(way, "s3://bucket/x", {"endpoint_url": CLOSED}), row)

    def test_a_tool_takes_no_missing_file_for_a_missing_object(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/none/token")
        folder = Folder("s3://bucket/", {"endpoint_url": CLOSED})
        for call in (lambda: folder.read("x"), folder.sizes, lambda: folder.remove("x")):
            with pytest.raises(AccessDenied, match="/var/run/none/token"):
                call()

    @pytest.mark.parametrize("way", WAYS)
    def test_an_empty_region(self, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "")
        row = Row(ConfigError, "AWS_DEFAULT_REGION is empty; set it to the bucket's region")
        check(told(way, "s3://bucket/x", s3(CLOSED)), row)
        options = s3(CLOSED, client_kwargs={"region_name": ""})
        row = Row(ConfigError, "'region_name' in 'client_kwargs' is empty")
        check(told(way, "s3://bucket/x", options), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_an_endpoint_without_a_scheme(self, way: Any) -> None:
        row = Row(ConfigError, "'endpoint_url'.*is not a URL.*write http:// or https://")
        check(told(way, "s3://bucket/x", s3("127.0.0.1:9")), row)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("name", "ours"),
        [
            ("aws_access_key_id", "it is 'key'"),
            ("aws_secret_access_key", "it is 'secret'"),
            ("aws_session_token", "it is 'token'"),
            ("region_name", "it is client_kwargs={'region_name': …}"),
            ("region", "it is client_kwargs={'region_name': …}"),
            ("endpoint", "it is 'endpoint_url'"),
            ("profil", "did you mean 'profile'"),
        ],
    )
    def test_the_options_of_others(self, way: Any, name: str, ours: str) -> None:
        error = told(way, "s3://bucket/x", s3(CLOSED, **{name: "x"}))
        check(error, Row(ConfigError, f"s3fs has no option '{name}'; {ours}"))

    def test_writing_takes_the_certificates_and_proxies_of_reading(self) -> None:
        with devstore() as store:
            writing("s3://bucket/y", s3(store, verify=False))
            assert store.objects["bucket/y"] == b"data"
        with pytest.raises(ConfigError, match="'verify' names /no/file, which is not a file"):
            writing("s3://bucket/y", s3(CLOSED, verify="/no/file"))


class TestGCS:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("status", "row"),
        [
            (403, Row(AccessDenied, "check them and the bucket's policy")),
            (404, Row(ObjectNotFound, "there is no such")),
            (401, Row(AccessDenied, "log in again")),
            (503, Row(StoreUnavailable, "asks to slow down", True)),
        ],
    )
    def test_a_refusal(self, way: Any, status: int, row: Row) -> None:
        waits: list[float] = []
        with devstore() as store, pytest.MonkeyPatch.context() as patch:
            patch.setattr("gcsfs.retry.asyncio", Waiting(waits))
            options = store.gcs_options
            store.faults = [FaultRule(status=status)]
            if way is deleting and status == 404:
                way("gs://bucket/x", options)
                return
            check(told(way, "gs://bucket/x", options), row)
        # A writer is told when gcsfs has tried again for half a minute.
        assert len(waits) == (5 if row.retryable and way in (writing, deleting) else 0)
        assert sum(waits) < 40

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("status", [401, 403])
    def test_anonymous(self, way: Any, status: int) -> None:
        with devstore(FaultRule(status=status)) as store:
            options = {"token": "anon", "endpoint_url": store.endpoint}
            check(told(way, "gs://bucket/x", options), ANONYMOUS)

    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize("url", ["gs://bucket", "gs://bucket/"])
    def test_a_url_that_names_no_object(self, way: Any, url: str) -> None:
        row = Row(ConfigError, f"^{url}: this names no object; write gs://bucket/object")
        check(told(way, url, {"token": "anon", "endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_credentials_file(self, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
        row = Row(AccessDenied, "GOOGLE_APPLICATION_CREDENTIALS names /no/such/key.json")
        check(told(way, "gs://bucket/x", {"endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_file_that_holds_no_credentials(
        self, way: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "key.json").write_text("not JSON")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        row = Row(AccessDenied, "names .*key.json, but google-auth cannot use what this file holds")
        check(told(way, "gs://bucket/x", {"endpoint_url": CLOSED}), row)

    @pytest.mark.parametrize("way", [reading, listing])
    def test_a_workload_s_token_that_is_missing(
        self, way: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        account = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {"file": "/var/run/none/token"},
        }
        (tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        row = Row(AccessDenied, "the file /var/run/none/token cannot be read")
        check(told(way, "gs://bucket/x", {"endpoint_url": CLOSED, "project": "p"}), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_an_endpoint_without_a_scheme(self, way: Any) -> None:
        options = {"token": "anon", "endpoint_url": "127.0.0.1:9"}
        row = Row(ConfigError, "'endpoint_url' must be a URL such as http://host:4443")
        check(told(way, "gs://bucket/x", options), row)

    @pytest.mark.parametrize("way", WAYS)
    def test_the_options_of_others(self, way: Any) -> None:
        error = told(way, "gs://bucket/x", {"credentials": "key.json"})
        check(error, Row(ConfigError, "gcsfs has no option 'credentials'; it is 'token'"))


class TestProxies:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize(
        ("url", "options"),
        [
            ("s3://bucket/x", s3(CLOSED)),
            ("gs://bucket/x", {"token": "anon", "endpoint_url": CLOSED}),
        ],
    )
    @pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy"])
    @pytest.mark.parametrize(
        "value", ["user:untold@127.0.0.1:9", "http://", "http://user:untold@:9", "http://h:untold"]
    )
    def test_a_variable_that_is_not_a_url(
        self,
        way: Any,
        url: str,
        options: dict[str, Any],
        name: str,
        value: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv(name, value)
        error = told(way, url, options)
        check(error, Row(ConfigError, f"^{name} is not an http URL.*{name}=http://host:3128"))
        assert "untold" not in str(error)

    def test_of_https(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTPS_PROXY", "127.0.0.1:9")
        row = Row(ConfigError, "^HTTPS_PROXY is not an http URL")
        check(told(reading, "https://127.0.0.1:9/x", {}), row)

    def test_a_proxy_of_another_kind_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
        row = Row(StoreUnavailable, "Connection refused", True)
        check(told(reading, "http://127.0.0.1:9/x", {}), row)


class TestHttp:
    def test_anonymous_and_not(self) -> None:
        with devstore(FaultRule(status=403, code="AccessDenied")) as store:
            url = f"{store.endpoint}/bucket/x"
            row = Row(AccessDenied, "no credentials were sent")
            check(told(reading, url, {}), row)
            sent = {"headers": {"Authorization": "Bearer x"}}
            row = Row(AccessDenied, "denies access with these credentials")
            check(told(reading, url, sent), row)
            check(told(reading, f"{url}?X-Amz-Signature=1", {}), row)

    def test_a_ca_bundle_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", "/no/ca.pem")
        with pytest.raises(ConfigError, match=r"SSL_CERT_FILE names /no/ca\.pem, which is not a"):
            HttpStore({})


class TestLocal:
    @pytest.mark.parametrize("way", [reading, writing])
    def test_no_directory(self, way: Any, tmp_path: Path) -> None:
        words = "no such file; check" if way is reading else "no such directory; create it first"
        check(told(way, str(tmp_path / "no/x"), {}), Row(ObjectNotFound, words))

    @pytest.mark.parametrize("way", [reading, writing])
    def test_a_directory(self, way: Any, tmp_path: Path) -> None:
        words = "name its shards" if way is reading else "name a file in it"
        check(told(way, str(tmp_path), {}), Row(StoreError, f"this is a directory; {words}"))

    @pytest.mark.parametrize(
        ("number", "row"),
        [
            (5, Row(StoreUnavailable, "Input/output error; check the disk", True)),
            (13, Row(AccessDenied, "check the permissions|change its permissions")),
            (28, Row(StoreError, "No space left on device; free space")),
            (30, Row(AccessDenied, "Read-only file system; mount")),
        ],
    )
    @pytest.mark.parametrize("way", [reading, writing])
    def test_the_system_s_errors(
        self, way: Any, number: int, row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("streamrec.stores.local_store.open_regular", fail)
        monkeypatch.setattr("streamrec.stores.local_store.PartFile", fail)
        check(told(way, str(tmp_path / "x"), {}), row)

    @pytest.mark.parametrize("way", [reading, writing])
    def test_a_scheme_with_one_slash(self, way: Any) -> None:
        check(told(way, "s3:/bucket/x", {}), Row(ObjectNotFound, "did you mean s3://"))


class TestMemory:
    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize(
        ("error", "row"),
        [
            (ConnectionResetError(104, "x"), Row(StoreUnavailable, "Connection reset", True)),
            (TimeoutError(), Row(StoreUnavailable, "sent nothing for too long", True)),
            (
                PermissionError(13, "x"),
                Row(AccessDenied, "these credentials"),
            ),
            (RuntimeError("untold"), Row(StoreMisbehaved, "RuntimeError")),
            (OSError(28, "x"), Row(StoreError, "No space left.*TMPDIR")),
        ],
        ids=repr,
    )
    def test_a_filesystem_s_errors(
        self, way: Any, error: Exception, row: Row, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        kind = fsspec.get_filesystem_class("memory")
        for name in ("info", "cat_file", "put_file"):
            monkeypatch.setattr(kind, name, fail)
        check(told(way, "memory://troubles/x", {}), row)


@pytest.mark.ceph
@pytest.mark.skipif(not CEPH, reason="STREAMREC_TEST_S3_ENDPOINT is not set; see .ci/ceph.sh")
class TestCeph:
    @pytest.fixture
    def bucket(self) -> Iterator[str]:
        client = botocore.session.Session().create_client(
            "s3",
            endpoint_url=CEPH,
            region_name="us-east-1",
            aws_access_key_id=KEYS["key"],
            aws_secret_access_key=KEYS["secret"],
        )
        name = f"troubles-{uuid.uuid4().hex[:12]}"
        client.create_bucket(Bucket=name)
        yield name
        client.delete_bucket(Bucket=name)
        client.close()

    @pytest.mark.parametrize("way", WAYS)
    def test_a_wrong_secret(self, way: Any, bucket: str) -> None:
        assert CEPH
        error = told(way, f"s3://{bucket}/x", s3(CEPH, secret="wrong"))
        check(error, Row(AccessDenied, "not accept these credentials.*SignatureDoesNotMatch"))

    @pytest.mark.parametrize("way", WAYS)
    def test_a_wrong_key(self, way: Any, bucket: str) -> None:
        assert CEPH
        error = told(way, f"s3://{bucket}/x", s3(CEPH, key="wrong"))
        check(error, Row(AccessDenied, "not accept these credentials.*InvalidAccessKeyId"))

    @pytest.mark.parametrize("way", [reading, listing, writing])
    def test_no_bucket(self, way: Any, bucket: str) -> None:
        assert CEPH
        error = told(way, f"s3://{bucket}x/x", s3(CEPH))
        check(error, Row(ObjectNotFound, "no such bucket.*404 NoSuchBucket"))

    def test_a_clock_that_is_wrong(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert CEPH

        def late(*_: Any, **__: Any) -> datetime:
            return datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)

        with monkeypatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", late)
            error = told(writing, f"s3://{bucket}/x", s3(CEPH))
        check(error, Row(AccessDenied, "set this machine's clock right.*RequestTimeTooSkewed"))


def test_the_pattern_is_told_as_it_was_given() -> None:
    with devstore() as store, pytest.raises(ObjectNotFound) as caught:
        next(iter(sr.open("s3://trian/points-*.tfrecord", storage_options=s3(store))))
    assert caught.value.url == "s3://trian/points-*.tfrecord"
    assert "no such bucket" in caught.value.message


def test_the_cause_is_told_where_patience_is_short() -> None:
    options = s3(CLOSED)
    cases: list[tuple[str, dict[str, Any]]] = [
        *(("s3://bucket/x", {}), ("s3://bucket/x-*", {})),
        *(("s3://bucket/x", {"index": True}), ("s3://bucket/x", {"features": "infer"})),
    ]
    for url, more in cases:
        stream: sr.Stream[Any] = sr.open(
            url, storage_options=options, stall_timeout=1, engine="thread", **more
        )
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            next(iter(stream))


def test_every_trouble_has_one_sentence_and_an_advice() -> None:
    facts = dict.fromkeys(
        ("reason", "host", "port", "file", "variable", "where", "hint", "error", "example"), "x"
    )
    for name in TROUBLES:
        for is_writing in (False, True):
            error = tell(name, "s3://bucket/x", writing=is_writing, facts=facts)
            assert "; " in error.message, error
            assert "{" not in error.message


def test_codes_and_statuses_name_troubles() -> None:
    assert {*_BY_CODE.values(), *_BY_STATUS.values()} <= TROUBLES.keys()
