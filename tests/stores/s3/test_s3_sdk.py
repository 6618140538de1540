"""Multipart uploads to S3: whole, or absent, and nothing left in the store."""

from __future__ import annotations

import asyncio
import random
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiobotocore.session import AioSession
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ObjectNotFound, StoreError, StoreMisbehaved
from streamrec.stores.base.new_object import GuardedObject, PartUpload
from streamrec.stores.blocking import Folder, new_object, write_object
from streamrec.stores.s3.presign import get_object
from streamrec.stores.s3.s3_sdk import (
    CHUNK,
    ONE_COPY,
    SdkSigner,
    _Body,
    abort_uploads,
    writing_filesystem,
)
from tests.stores.s3.test_presign import LISTING, opened
from tests.stores.s3.test_presign import OPTIONS as PLAIN
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.stores.s3.presign import Presigner
    from tests.stores.certificates import Authority

PART = 5 << 20  # the least that S3 takes


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as devstore:
        devstore.objects.create_bucket("bucket")
        yield devstore


@pytest.fixture(autouse=True)
def least_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.stores.base.new_object.PART", PART)


def uploads(store: DevStore) -> list[str]:
    """Return the keys of the uploads that have begun, and of no more than that."""
    files = writing_filesystem("s3://bucket/", store.storage_options)
    found = files.call_s3("list_multipart_uploads", Bucket="bucket")
    return [upload["Key"] for upload in found.get("Uploads", [])]


@pytest.mark.parametrize("size", [0, 10, PART, 3 * PART + 7])
def test_written(store: DevStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    write_object("s3://bucket/a b/x", data[:size], store.storage_options)
    assert store.objects["bucket/a b/x"] == data[:size]
    assert uploads(store) == []


def test_the_files_of_a_login_are_checked_once_and_not_for_each_object(
    store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str | None] = []
    monkeypatch.setattr("streamrec.stores.s3.s3_sdk.check_login_files", checked.append)
    for name in ("a", "b"):
        write_object(f"s3://bucket/{name}", b"x", store.storage_options)
    assert checked == [None]


@pytest.mark.parametrize("size", [0, 10, 3 * PART + 7])
def test_written_over_tls(authority: Authority, size: int) -> None:
    """Over TLS botocore sends chunks, with a checksum behind them that the store compares."""
    data = bytes(range(256)) * (size // 256 + 1)
    with DevStore(tls=authority.server) as store:
        store.objects.create_bucket("bucket")
        store.faults = [FaultRule(method="PUT", nth=1, status=503)]
        options = {**store.storage_options, "client_kwargs": {"verify": authority.file}}
        write_object("s3://bucket/x", data[:size], options)
        assert store.objects["bucket/x"] == data[:size]


def test_a_bucket_of_another_region_is_written(store: DevStore) -> None:
    headers = {"x-amz-bucket-region": "eu-west-3"}
    store.faults = [FaultRule(first=1, status=301, code="PermanentRedirect", headers=headers)]
    write_object("s3://bucket/x", b"data", store.storage_options)
    assert store.objects["bucket/x"] == b"data"


class Written(list[memoryview]):
    """What aiohttp sends, chunk by chunk."""

    async def write(self, chunk: memoryview) -> None:
        self.append(chunk)


class TestBody:
    """What botocore and aiohttp do with the bytes of a request."""

    @given(data=st.binary(max_size=40), reads=st.lists(st.integers(-1, 9)))
    def test_it_is_read_like_a_file(self, data: bytes, reads: list[int]) -> None:
        body, file = _Body(data), BytesIO(data)
        for size in reads:
            assert bytes(body.read(size)) == file.read(size)
            assert body.tell() == file.tell()
        assert len(body) == len(data)

    @given(data=st.binary(max_size=40), place=st.integers(0, 40), whence=st.sampled_from([0, 1, 2]))
    def test_it_is_read_from_another_place(self, data: bytes, place: int, whence: int) -> None:
        place = place % (len(data) + 1) * (-1 if whence == 2 else 1)
        body, file = _Body(data), BytesIO(data)
        assert body.seek(place, whence) == file.seek(place, whence)
        assert bytes(body.read()) == file.read()

    @asynchronous
    async def test_it_is_sent_again_from_the_beginning(self) -> None:
        body, written = _Body(data := random.Random(0).randbytes(2 * CHUNK + 1)), Written()
        body.read()  # as botocore does for the checksum
        for _ in range(2):
            written.clear()
            await body.write(cast("Any", written))
            assert [len(chunk) for chunk in written] == [CHUNK, CHUNK, 1]
            assert b"".join(written) == data
        assert not body.consumed


def test_nothing_is_seen_before_the_end(store: DevStore) -> None:
    writer = sr.TFRecordWriter("s3://bucket/x", storage_options=store.storage_options)
    writer.write(bytes(2 * PART))
    writer.flush()
    assert uploads(store) in ([], ["x"])
    assert dict(store.objects) == {}
    writer.discard()
    assert uploads(store) == []
    assert dict(store.objects) == {}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (FaultRule(method="PUT", nth=2, status=403, code="AccessDenied"), AccessDenied),
        (FaultRule(method="POST", nth=1, status=403, code="AccessDenied"), AccessDenied),
        (FaultRule(method="POST", nth=2, status=400, code="InvalidPart"), StoreError),
        (FaultRule(method="PUT", status=404, code="NoSuchBucket"), ObjectNotFound),
    ],
    ids=["part", "beginning", "end", "no bucket"],
)
def test_what_fails_leaves_nothing(
    store: DevStore, fault: FaultRule, kind: type[Exception]
) -> None:
    store.faults = [fault]
    with pytest.raises(kind):
        with sr.TFRecordWriter("s3://bucket/x", storage_options=store.storage_options) as writer:
            for _ in range(6):
                writer.write(bytes(PART))
    store.faults = []
    assert uploads(store) == []
    assert dict(store.objects) == {}


def test_a_lost_answer_to_the_last_step_is_looked_up(store: DevStore) -> None:
    """The store has made the object; the request that is sent again finds no upload."""
    store.faults = [FaultRule(method="POST", nth=2, reset_after=0)]
    data = bytes(range(256)) * (2 * PART // 256) + b"end"
    write_object("s3://bucket/x", data, store.storage_options)
    assert store.objects["bucket/x"] == data


@pytest.mark.parametrize("more", [0, 1], ids=["of this size", "of another"])
def test_an_older_object_is_not_taken_for_the_new_one(
    store: DevStore, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time", lambda: now - 10)
        store.objects["bucket/x"] = bytes(2 * PART + more)
    store.faults = [FaultRule(method="POST", nth=2, status=404, code="NoSuchUpload")]
    with pytest.raises(StoreError):
        write_object("s3://bucket/x", b"1" * 2 * PART, store.storage_options)
    assert store.objects["bucket/x"] == bytes(2 * PART + more)


def test_a_part_that_the_store_was_too_busy_for_is_sent_again(store: DevStore) -> None:
    store.faults = [FaultRule(method="PUT", nth=1, status=503)]
    write_object("s3://bucket/x", bytes(2 * PART), store.storage_options)
    assert len(store.objects["bucket/x"]) == 2 * PART


class _Uploads:
    """A store whose list of uploads comes in pages."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = list(pages)
        self.aborted: list[str] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, what: str, **arguments: Any) -> dict[str, Any]:
        if what == "abort_multipart_upload":
            self.aborted.append(arguments["Key"])
            return {}
        return self._pages.pop(0)


def page_of_uploads(key: str, **marks: str) -> dict[str, Any]:
    named = {f"Next{name}": value for name, value in marks.items()}
    uploads = [{"Key": key, "UploadId": "1"}]
    return {"Uploads": uploads, "IsTruncated": bool(marks), **named}


def test_the_uploads_of_all_pages_are_aborted() -> None:
    marked = [page_of_uploads(f"d/x-{n}", KeyMarker="d/x", UploadIdMarker=str(n)) for n in (0, 1)]
    files = _Uploads(*marked, page_of_uploads("d/other"))
    abort_uploads(files, "bucket/d", ["x-"])
    assert files.aborted == ["d/x-0", "d/x-1"]


@pytest.mark.parametrize("marks", [{"KeyMarker": "d/x", "UploadIdMarker": "1"}, {"KeyMarker": ""}])
def test_a_list_of_uploads_without_an_end_is_an_error(marks: dict[str, str]) -> None:
    pages = [page_of_uploads("d/x-0", **marks)] * 3
    with pytest.raises(StoreMisbehaved, match="a page again and again"):
        abort_uploads(_Uploads(*pages), "bucket/d", ["x-"])


def test_what_a_killed_task_left_goes_with_its_next_run(store: DevStore) -> None:
    options: dict[str, Any] = store.storage_options
    left = [new_object(f"s3://bucket/d/{name}", options) for name in ("x-00000-of-00002", "other")]
    for target in left:  # as if their process had been killed here
        target.write(bytes(PART + 1))
        assert isinstance(target, GuardedObject)
        assert isinstance(target.target, PartUpload)
        target.target._wait()
    assert sorted(uploads(store)) == ["d/other", "d/x-00000-of-00002"]
    with sr.ShardedWriter("s3://bucket/d/x", shards=2, storage_options=options) as writer:
        writer.write(b"one")
    assert uploads(store) == ["d/other"]
    left[1].discard()


def test_a_dataset_by_size(store: DevStore) -> None:
    options: dict[str, Any] = store.storage_options
    with sr.ShardedWriter(
        "s3://bucket/d/x.tfrecord", shard_bytes=50, storage_options=options
    ) as writer:
        writer.write_many([b"%030d" % n for n in range(3)])
    assert sorted(store.objects) == [
        *(f"bucket/d/x-0000{n}-of-00003.tfrecord" for n in range(3)),
        "bucket/d/x.streamrec-index",
        "bucket/d/x.streamrec-manifest.json",
    ]


class TestCopies:
    @pytest.fixture
    def folder(self, store: DevStore) -> Folder:
        store.put("bucket/a b/x", bytes(range(200)))
        store.statistics.clear()
        return Folder("s3://bucket/a b/", store.storage_options)

    def test_one_request_where_the_size_is_known(self, store: DevStore, folder: Folder) -> None:
        folder.publish({"x": "y/ä"}, {"x": 200})
        assert store.objects["bucket/a b/y/ä"] == store.objects["bucket/a b/x"]
        assert store.statistics.by_kind == {"PutObject": 1}

    def test_a_large_object_in_parts(
        self, store: DevStore, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("s3fs.core.MANAGED_COPY_THRESHOLD", 199)
        folder.publish({"x": "y/ä"}, {"x": ONE_COPY + 1})
        assert store.objects["bucket/a b/y/ä"] == store.objects["bucket/a b/x"]
        assert store.statistics.by_kind["UploadPart"] == 1

    def test_of_nothing(self, folder: Folder) -> None:
        with pytest.raises(ObjectNotFound) as caught:
            folder.publish({"none": "y"}, {"none": 1})
        assert caught.value.url == "s3://bucket/a b/y"


def test_a_directory_is_listed_by_one_request(store: DevStore) -> None:
    store.put("bucket/other", b"")
    folder = Folder("s3://bucket/d/", store.storage_options)
    for objects in ({}, {"x": 1, "y": 1}):
        store.objects.update({f"bucket/d/{name}": b"1" for name in objects})
        store.statistics.clear()
        assert folder.sizes() == objects
        assert store.statistics.by_kind == {"ListObjectsV2": 1}


@pytest.mark.parametrize(
    ("how", "writes", "removals"), [({"shards": 3}, 7, 1), ({"shard_bytes": 50}, 10, 4)]
)
def test_a_dataset_asks_for_nothing_that_its_writer_knows(
    store: DevStore, how: dict[str, Any], writes: int, removals: int
) -> None:
    with sr.ShardedWriter(
        "s3://bucket/d/x", **how, storage_options=store.storage_options
    ) as writer:
        writer.write_many([b"%030d" % n for n in range(3)])
    assert store.statistics.by_kind == {
        "ListObjectsV2": 2,  # what is there at first, and the shards' ETags
        "ListMultipartUploads": 2,
        "PutObject": writes,
        "DeleteObject": removals,
    }


def test_two_colons_in_a_key_begin_no_chain(store: DevStore) -> None:
    write_object("s3://bucket/a::b://c", b"data", store.storage_options)
    assert store.objects["bucket/a::b://c"] == b"data"


OPTIONS = {**PLAIN, "config_kwargs": {"read_timeout": 3}}
"""Options that need botocore's client."""


def signer_of(presigner: Presigner) -> SdkSigner:
    assert presigner._sdk is not None
    return presigner._sdk


@asynchronous
async def test_renewed_clients_are_closed_in_the_end() -> None:
    async with opened(OPTIONS) as presigner:
        signed, _ = await presigner.sign("", LISTING)
        before = signer_of(presigner)._client
        await presigner.renew("s3://b/x", signed)
        await presigner.renew("s3://b/x", signed)
        again, _ = await presigner.sign("", LISTING)
        assert again.era == signed.era + 1
        assert signer_of(presigner)._client is not before
        assert signer_of(presigner)._retired == [before]
    assert signer_of(presigner)._retired == []


@asynchronous
async def test_closing_makes_no_client() -> None:
    signer = SdkSigner(OPTIONS, None)
    await signer.aclose()
    assert signer._filesystem._s3 is None


@asynchronous
async def test_many_at_once_make_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = AioSession.create_client

    def counted(session: AioSession, service: str, **settings: Any) -> Any:
        made.append(service)
        return create(session, service, **settings)

    monkeypatch.setattr(AioSession, "create_client", counted)
    async with opened(OPTIONS) as presigner:
        calls = [get_object("bucket", f"{number}") for number in range(20)]
        await asyncio.gather(*(presigner.sign("", call) for call in calls))
    assert made == ["s3"]


@asynchronous
async def test_sessions_share_the_descriptions_of_services_alone() -> None:
    async with opened(OPTIONS) as one, opened(OPTIONS) as other:
        for presigner in (one, other):
            await presigner.sign("", LISTING)
        sessions = signer_of(one)._filesystem.session, signer_of(other)._filesystem.session
        loaders = [session.get_component("data_loader") for session in sessions]
    assert sessions[0] is not sessions[1]
    assert loaders[0] is loaders[1]
