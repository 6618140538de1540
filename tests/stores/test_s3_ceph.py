"""The S3 store against Ceph's RADOS gateway, which checks what devstore takes for granted."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import botocore.session
import pytest

import streamrec as sr
from streamrec.errors import AccessDenied, AuditFailed, ObjectNotFound, StoreError
from streamrec.stores.base.new_object import GuardedObject, PartUpload
from streamrec.stores.blocking import new_object, write_object
from streamrec.stores.http.http_store import RangeClient
from streamrec.streams.audit_check import check_audit
from tests.stores.conformance import (
    DATA,
    AccessConformance,
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    WritingConformance,
    read,
)
from tests.stores.s3.test_s3_store import KEYS, opened
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from streamrec.stores.http.http_ranges import HttpBody, RangedGet

ENDPOINT = os.environ.get("STREAMREC_TEST_S3_ENDPOINT")

pytestmark = [
    pytest.mark.ceph,
    pytest.mark.skipif(
        not ENDPOINT, reason="STREAMREC_TEST_S3_ENDPOINT is not set; see .ci/ceph.sh"
    ),
]


@pytest.fixture(scope="module")
def ceph() -> Iterator[Any]:
    """Yield a plain client of the gateway, which fills it."""
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=KEYS["key"],
        aws_secret_access_key=KEYS["secret"],
    )
    yield client
    client.close()


@pytest.fixture
def bucket(ceph: Any) -> str:
    name = f"streamrec-{uuid.uuid4().hex[:12]}"
    ceph.create_bucket(Bucket=name)
    return name


class TestS3OnCeph(StoreConformance, ListingConformance, WritingConformance, AccessConformance):
    @pytest.fixture
    def backend(self, ceph: Any, bucket: str) -> Backend:
        options = {**KEYS, "endpoint_url": ENDPOINT}

        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with (
                opened(options) as store,
                opened({**options, "secret": "wrong"}) as denied,
            ):
                yield Bench(
                    store,
                    url=lambda name: f"s3://{bucket}/{name}",
                    put=lambda name, data: ceph.put_object(Bucket=bucket, Key=name, Body=data),
                    denied=denied,
                )

        return make

    @asynchronous
    async def test_requests_are_presigned(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetched: list[str] = []
        fetch = RangeClient.open

        async def record(client: RangeClient, request: RangedGet) -> HttpBody:
            fetched.append(request.address)
            return await fetch(client, request)

        monkeypatch.setattr(RangeClient, "open", record)
        async with backend() as bench:
            bench.put("x", DATA)
            await read(bench.store, bench.url("x"), 0, 10)
        [query] = [parse_qs(urlsplit(address).query) for address in fetched]
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
        assert query["X-Amz-SignedHeaders"] == ["host"]

    @asynchronous
    async def test_listing_in_pages(self, backend: Backend, bucket: str) -> None:
        options = {**KEYS, "endpoint_url": ENDPOINT, "s3_additional_kwargs": {"MaxKeys": 5}}
        async with backend() as bench, opened(options) as store:
            names = [
                *(f"{number:02}" for number in range(60)),
                "9 +%/ü",
                "a/1",
                "\uffff",
                "\U00010000",
            ]
            for name in names:
                bench.put(name, b"")
            found = [info.url async for info in store.list(bench.url(""))]
            assert found == [bench.url(name) for name in names]
            flat = [info.url async for info in store.list(bench.url(""), recursive=False)]
            assert flat == [bench.url(name) for name in names if "/" not in name]

    @asynchronous
    async def test_missing_bucket(self, backend: Backend) -> None:
        async with backend() as bench:
            with pytest.raises(ObjectNotFound, match="bucket"):
                await read(bench.store, "s3://streamrec-none/x", 0, 10)
            with pytest.raises(ObjectNotFound, match="bucket"):
                [info async for info in bench.store.list("s3://streamrec-none/")]


@asynchronous
async def test_requester_pays_with_a_checked_signature(ceph: Any, bucket: str) -> None:
    ceph.put_object(Bucket=bucket, Key="x", Body=DATA)
    async with opened({**KEYS, "endpoint_url": ENDPOINT, "requester_pays": True}) as store:
        assert (await read(store, f"s3://{bucket}/x", 0, 10))[0] == DATA[:10]
        assert [info.size async for info in store.list(f"s3://{bucket}/")] == [len(DATA)]


@asynchronous
async def test_objects_encrypted_with_a_customers_key(ceph: Any, bucket: str) -> None:
    encryption = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    ceph.put_object(Bucket=bucket, Key="x", Body=DATA, **encryption)
    url, plain = f"s3://{bucket}/x", {**KEYS, "endpoint_url": ENDPOINT}
    async with opened({**plain, "s3_additional_kwargs": encryption}) as store:
        data, info = await read(store, url, 100, 5000)
        assert data == DATA[100:5000]
        assert info.size == len(DATA)
    async with opened(plain) as store:
        with pytest.raises(StoreError):
            await read(store, url, 0, 10)
    other = {**encryption, "SSECustomerKey": "x" * 32}
    async with opened({**plain, "s3_additional_kwargs": other}) as store:
        with pytest.raises(StoreError):
            await read(store, url, 0, 10)


@pytest.mark.night  # by day devstore answers it, in s3/test_s3_options.py
class TestFallbackOnCeph(StoreConformance, ListingConformance, AccessConformance):
    """s3fs as it is, which the store falls back to."""

    @pytest.fixture
    def backend(self, ceph: Any, bucket: str) -> Backend:
        options = {**KEYS, "endpoint_url": ENDPOINT, "version_aware": True}

        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with (
                opened(options) as store,
                opened({**options, "secret": "wrong"}) as denied,
            ):
                yield Bench(
                    store,
                    url=lambda name: f"s3://{bucket}/{name}",
                    put=lambda name, data: ceph.put_object(Bucket=bucket, Key=name, Body=data),
                    denied=denied,
                )

        return make


OPTIONS = {**KEYS, "endpoint_url": ENDPOINT}


class TestUploadsOnCeph:
    def uploads(self, ceph: Any, bucket: str) -> list[str]:
        found = ceph.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return [upload["Key"] for upload in found]

    @pytest.mark.parametrize("size", [0, 100, 8 << 20, (20 << 20) + 1])
    def test_written(self, ceph: Any, bucket: str, size: int) -> None:
        data = bytes(range(250)) * (size // 250 + 1)
        write_object(f"s3://{bucket}/a b/ü", data[:size], OPTIONS)
        assert ceph.get_object(Bucket=bucket, Key="a b/ü")["Body"].read() == data[:size]
        assert self.uploads(ceph, bucket) == []

    def test_nothing_is_left_of_a_writer_that_fails(self, ceph: Any, bucket: str) -> None:
        with pytest.raises(ZeroDivisionError):
            with sr.TFRecordWriter(f"s3://{bucket}/x", storage_options=OPTIONS) as writer:
                writer.write(bytes(20 << 20))
                raise ZeroDivisionError
        assert self.uploads(ceph, bucket) == []
        assert "Contents" not in ceph.list_objects_v2(Bucket=bucket)

    def test_a_dataset_by_size_and_what_a_killed_task_left(self, ceph: Any, bucket: str) -> None:
        place = f"s3://{bucket}/d/"
        target = new_object(f"{place}.x.task-00000-of-00001-00000.streamrec-part", OPTIONS)
        target.write(bytes(9 << 20))  # as if its process had been killed here
        assert isinstance(target, GuardedObject)
        assert isinstance(target.target, PartUpload)
        target.target._wait()
        assert len(self.uploads(ceph, bucket)) == 1
        with sr.ShardedWriter(
            f"{place}x", shard_bytes=50, labels={"a": 0}, storage_options=OPTIONS
        ) as writer:
            writer.write_many([b"%030d" % n for n in range(3)])
        assert self.uploads(ceph, bucket) == []
        names = [found["Key"] for found in ceph.list_objects_v2(Bucket=bucket)["Contents"]]
        shards = [f"d/x-0000{n}-of-00003" for n in range(3)]
        assert names == [*shards, "d/x.streamrec-index", "d/x.streamrec-manifest.json"]
        source = f"{place}x-*"
        assert sr.labels(source, storage_options=OPTIONS) == {"a": 0}
        with sr.open(
            source, batch_size=3, index=True, engine="thread", storage_options=OPTIONS
        ) as stream:
            assert len(next(iter(stream)).records) == 3

    def test_a_wrong_key(self, bucket: str) -> None:
        with pytest.raises(AccessDenied):
            write_object(f"s3://{bucket}/x", bytes(9 << 20), {**OPTIONS, "secret": "wrong"})


def test_an_audit_log_that_a_policy_refuses(ceph: Any, bucket: str, tmp_path: Path) -> None:
    """The stream ends in one sentence, and the log is written once the policy allows it."""
    with sr.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write_many({"id": number} for number in range(40))
    refused = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject"}
    refused["Resource"] = f"arn:aws:s3:::{bucket}/*"
    policy = json.dumps({"Version": "2012-10-17", "Statement": [refused]})
    ceph.put_bucket_policy(Bucket=bucket, Policy=policy)
    options = {**KEYS, "endpoint_url": ENDPOINT}
    audit = {"url": f"s3://{bucket}/run", "storage_options": options}
    source = str(tmp_path / "x.tfrecord")
    stream = sr.open(source, batch_size=4, lanes=1, epochs=None, engine="thread", audit=audit)
    with pytest.raises(AuditFailed, match=r"cannot be written.*AccessDenied.*iterate again"):
        for _ in stream:
            pass
    ceph.delete_bucket_policy(Bucket=bucket)
    for _ in sr.take(stream, 3):
        pass
    stream.close()
    steps = stream.state_dict()["step"]
    report = check_audit(f"s3://{bucket}/run", storage_options=options, reads=True)
    assert (report.agrees, report.ranks[0].steps) == (True, steps)
