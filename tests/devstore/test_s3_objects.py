from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from streamrec.devstore import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.devstore import DevStore

DATA = bytes(range(200))
ETAG = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
PART = 5 << 20


def refusal(operation: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """Status and code of the error that the operation ends with."""
    with pytest.raises(ClientError) as caught:
        operation(**arguments)
    response: Any = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


@pytest.fixture(autouse=True)
def _data(store: DevStore) -> None:
    store.put("b/k", DATA)
    store.put("b/empty", b"")


class TestGet:
    def test_the_whole(self, s3: Any) -> None:
        answer = s3.get_object(Bucket="b", Key="k")
        assert answer["Body"].read() == DATA
        assert (answer["ETag"], answer["ContentLength"]) == (f'"{ETAG}"', 200)
        assert answer["AcceptRanges"] == "bytes"
        assert answer["ContentType"] == "binary/octet-stream"
        assert answer["ResponseMetadata"]["RequestId"]

    @pytest.mark.parametrize(
        ("asked", "start", "stop"),
        [
            ("bytes=0-0", 0, 1),
            ("bytes=10-19", 10, 20),
            ("bytes=150-", 150, 200),
            ("bytes=150-999", 150, 200),
            ("bytes=-7", 193, 200),
            ("bytes=-999", 0, 200),
        ],
    )
    def test_a_range(self, s3: Any, asked: str, start: int, stop: int) -> None:
        answer = s3.get_object(Bucket="b", Key="k", Range=asked)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert answer["Body"].read() == DATA[start:stop]
        assert answer["ContentRange"] == f"bytes {start}-{stop - 1}/200"

    @pytest.mark.parametrize("asked", ["bytes=5-4", "bytes=x", "bytes=0-1,3-4", "lines=0-1"])
    def test_a_range_that_is_none_is_ignored(self, s3: Any, asked: str) -> None:
        answer = s3.get_object(Bucket="b", Key="k", Range=asked)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert answer["Body"].read() == DATA
        assert "ContentRange" not in answer

    @pytest.mark.parametrize(
        ("key", "asked"),
        [("k", "bytes=200-"), ("k", "bytes=-0"), ("empty", "bytes=0-"), ("empty", "bytes=-1")],
    )
    def test_a_range_past_the_end(self, s3: Any, key: str, asked: str) -> None:
        with pytest.raises(ClientError) as caught:
            s3.get_object(Bucket="b", Key=key, Range=asked)
        response: Any = caught.value.response
        assert response["Error"]["Code"] == "InvalidRange"
        headers = response["ResponseMetadata"]["HTTPHeaders"]
        assert headers["content-range"] == f"bytes */{200 if key == 'k' else 0}"

    def test_an_empty_object(self, s3: Any) -> None:
        answer = s3.get_object(Bucket="b", Key="empty")
        assert (answer["Body"].read(), answer["ContentLength"]) == (b"", 0)

    def test_head_says_what_get_says(self, s3: Any) -> None:
        head = s3.head_object(Bucket="b", Key="k")
        assert (head["ETag"], head["ContentLength"]) == (f'"{ETAG}"', 200)
        ranged = s3.head_object(Bucket="b", Key="k", Range="bytes=0-9")
        assert ranged["ContentLength"] == 10
        assert ranged["ResponseMetadata"]["HTTPStatusCode"] == 206

    def test_what_is_missing(self, s3: Any) -> None:
        assert refusal(s3.get_object, Bucket="b", Key="x") == (404, "NoSuchKey")
        assert refusal(s3.get_object, Bucket="x", Key="k") == (404, "NoSuchBucket")
        assert refusal(s3.head_object, Bucket="b", Key="x") == (404, "404")

    def test_preconditions(self, s3: Any) -> None:
        wrong, right = '"00"', f'"{ETAG}"'
        assert s3.get_object(Bucket="b", Key="k", IfMatch=right)["Body"].read() == DATA
        assert s3.get_object(Bucket="b", Key="k", IfNoneMatch=wrong)["Body"].read() == DATA
        failed = (412, "PreconditionFailed")
        assert refusal(s3.get_object, Bucket="b", Key="k", IfMatch=wrong) == failed
        assert refusal(s3.get_object, Bucket="b", Key="k", IfNoneMatch=right) == (304, "304")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        unchanged = refusal(s3.get_object, Bucket="b", Key="k", IfModifiedSince=tomorrow)
        assert unchanged == (304, "304")


class TestGetFaults:
    def test_preconditions_may_be_ignored(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(ignore_preconditions=True)]
        assert s3.get_object(Bucket="b", Key="k", IfMatch='"00"')["ETag"] == f'"{ETAG}"'

    def test_another_version(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(etag="other")]
        assert s3.get_object(Bucket="b", Key="k")["ETag"] == '"other"'
        answer = refusal(s3.get_object, Bucket="b", Key="k", IfMatch=f'"{ETAG}"')
        assert answer == (412, "PreconditionFailed")

    def test_the_range_may_be_ignored(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(ignore_range=True)]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["Body"].read() == DATA
        assert "ContentRange" not in answer

    def test_200_for_206(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(partial_status=200)]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert answer["ContentRange"] == "bytes 3-5/200"
        assert answer["Body"].read() == DATA[3:6]

    def test_a_wrong_content_range(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(content_range="bytes 4-6/200")]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["ContentRange"] == "bytes 4-6/200"
        assert answer["Body"].read() == DATA[3:6]

    def test_headers_may_be_added(self, store: DevStore, s3: Any) -> None:
        store.faults = [Fault(headers={"Content-Encoding": "gzip"})]
        assert s3.get_object(Bucket="b", Key="k")["ContentEncoding"] == "gzip"


class TestPut:
    def test_metadata_comes_back(self, s3: Any) -> None:
        s3.put_object(
            Bucket="b",
            Key="new",
            Body=b"text",
            ContentType="text/plain",
            ContentEncoding="gzip",
            Metadata={"author": "me"},
        )
        answer = s3.get_object(Bucket="b", Key="new")
        assert (answer["ContentType"], answer["ContentEncoding"]) == ("text/plain", "gzip")
        assert answer["Metadata"] == {"author": "me"}

    @pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
    def test_checksums(self, store: DevStore, s3: Any, algorithm: str) -> None:
        s3.put_object(Bucket="b", Key="new", Body=DATA, ChecksumAlgorithm=algorithm)
        assert store.objects["b/new"] == DATA

    def test_a_file_is_streamed(self, store: DevStore, s3: Any, tmp_path: Any) -> None:
        (tmp_path / "file").write_bytes(DATA * 5000)
        with (tmp_path / "file").open("rb") as file:
            s3.put_object(Bucket="b", Key="new", Body=file)
        assert store.objects["b/new"] == DATA * 5000
        assert store.statistics.bytes_received == 1_000_000

    def test_without_checksums(self, store: DevStore, client_of: Callable[..., Any]) -> None:
        plain = Config(
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        client_of(store, config=plain).put_object(Bucket="b", Key="new", Body=DATA)
        assert store.objects["b/new"] == DATA

    def test_a_wrong_digest_is_refused(self, store: DevStore, s3: Any) -> None:
        arguments = {
            "Bucket": "b",
            "Key": "new",
            "Body": b"x",
            "ContentMD5": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        assert refusal(s3.put_object, **arguments) == (400, "BadDigest")
        assert "b/new" not in store.objects

    def test_conditional_writes(self, s3: Any) -> None:
        failed = (412, "PreconditionFailed")
        assert refusal(s3.put_object, Bucket="b", Key="k", IfNoneMatch="*") == failed
        assert refusal(s3.put_object, Bucket="b", Key="k", IfMatch='"00"') == failed
        assert refusal(s3.put_object, Bucket="b", Key="new", IfMatch='"00"') == failed
        s3.put_object(Bucket="b", Key="new", Body=b"", IfNoneMatch="*")
        s3.put_object(Bucket="b", Key="k", Body=b"", IfMatch=f'"{ETAG}"')

    def test_a_missing_bucket_is_not_made(self, store: DevStore, s3: Any) -> None:
        assert refusal(s3.put_object, Bucket="x", Key="k") == (404, "NoSuchBucket")
        assert store.objects.buckets() == ["b"]


def test_copy(store: DevStore, s3: Any) -> None:
    s3.put_object(Bucket="b", Key="old ä", Body=DATA, Metadata={"a": "1"})
    source = {"Bucket": "b", "Key": "old ä"}
    answer = s3.copy_object(Bucket="b", Key="new", CopySource=source)
    assert answer["CopyObjectResult"]["ETag"] == f'"{ETAG}"'
    assert store.objects["b/new"] == DATA
    assert s3.head_object(Bucket="b", Key="new")["Metadata"] == {"a": "1"}
    s3.copy_object(
        Bucket="b", Key="new", CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE"
    )
    assert s3.head_object(Bucket="b", Key="new")["Metadata"] == {"b": "2"}
    missing = refusal(s3.copy_object, Bucket="b", Key="new", CopySource="b/missing")
    assert missing == (404, "NoSuchKey")


def test_delete(store: DevStore, s3: Any) -> None:
    s3.delete_object(Bucket="b", Key="k")
    s3.delete_object(Bucket="b", Key="k")
    assert list(store.objects) == ["b/empty"]
    assert refusal(s3.delete_object, Bucket="x", Key="k") == (404, "NoSuchBucket")


class TestMultipart:
    def test_an_object_in_parts(self, store: DevStore, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        identity = s3.create_multipart_upload(**where, Metadata={"a": "1"})["UploadId"]
        pieces = [b"a" * PART, b"b" * PART, b"c"]
        parts = [
            s3.upload_part(**where, UploadId=identity, PartNumber=n, Body=piece) | {"n": n}
            for n, piece in enumerate(pieces, 1)
        ]
        assert "b/large" not in store.objects
        wanted = [{"PartNumber": part["n"], "ETag": part["ETag"]} for part in parts]
        done = s3.complete_multipart_upload(
            **where, UploadId=identity, MultipartUpload={"Parts": wanted}
        )
        assert store.objects["b/large"] == b"".join(pieces)
        head = s3.head_object(**where)
        assert head["ETag"] == done["ETag"]
        assert head["ETag"].endswith('-3"')
        assert head["Metadata"] == {"a": "1"}

    def test_an_aborted_upload_is_gone(self, store: DevStore, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        identity = s3.create_multipart_upload(**where)["UploadId"]
        s3.upload_part(**where, UploadId=identity, PartNumber=1, Body=b"x")
        s3.abort_multipart_upload(**where, UploadId=identity)
        answer = refusal(s3.upload_part, **where, UploadId=identity, PartNumber=2, Body=b"x")
        assert answer == (404, "NoSuchUpload")
        assert "b/large" not in store.objects

    def test_an_upload_belongs_to_its_object(self, s3: Any) -> None:
        identity = s3.create_multipart_upload(Bucket="b", Key="large")["UploadId"]
        for key, upload in (("other", identity), ("large", "unknown")):
            where = {"Bucket": "b", "Key": key, "UploadId": upload, "PartNumber": 1}
            assert refusal(s3.upload_part, **where, Body=b"x") == (404, "NoSuchUpload")

    def test_copying_a_part_is_not_implemented(self, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        identity = s3.create_multipart_upload(**where)["UploadId"]
        arguments = {**where, "UploadId": identity, "PartNumber": 1, "CopySource": "b/k"}
        assert refusal(s3.upload_part_copy, **arguments) == (501, "NotImplemented")
