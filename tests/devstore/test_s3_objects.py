from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from streamrec.devstore import FaultRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrec.devstore import DevStore

DATA = bytes(range(200))
ETAG = hashlib.md5(DATA, usedforsecurity=False).hexdigest()


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
        right = s3.get_object(Bucket="b", Key="k", IfMatch=f'"{ETAG}"')
        assert right["Body"].read() == DATA
        failed = (412, "PreconditionFailed")
        assert refusal(s3.get_object, Bucket="b", Key="k", IfMatch='"00"') == failed


class TestGetFaults:
    def test_preconditions_may_be_ignored(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(ignore_preconditions=True)]
        assert s3.get_object(Bucket="b", Key="k", IfMatch='"00"')["ETag"] == f'"{ETAG}"'

    def test_another_version(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(etag="other")]
        assert s3.get_object(Bucket="b", Key="k")["ETag"] == '"other"'
        answer = refusal(s3.get_object, Bucket="b", Key="k", IfMatch=f'"{ETAG}"')
        assert answer == (412, "PreconditionFailed")

    def test_the_range_may_be_ignored(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(ignore_range=True)]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["Body"].read() == DATA
        assert "ContentRange" not in answer

    def test_200_for_206(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(partial_status=200)]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert answer["ContentRange"] == "bytes 3-5/200"
        assert answer["Body"].read() == DATA[3:6]

    def test_a_wrong_content_range(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(content_range="bytes 4-6/200")]
        answer = s3.get_object(Bucket="b", Key="k", Range="bytes=3-5")
        assert answer["ContentRange"] == "bytes 4-6/200"
        assert answer["Body"].read() == DATA[3:6]

    def test_headers_may_be_added(self, store: DevStore, s3: Any) -> None:
        store.faults = [FaultRule(headers={"Content-Encoding": "gzip"})]
        assert s3.get_object(Bucket="b", Key="k")["ContentEncoding"] == "gzip"


class TestPut:
    def test_headers_come_back(self, s3: Any) -> None:
        kept = {"ContentType": "text/plain", "ContentEncoding": "gzip"}
        s3.put_object(Bucket="b", Key="new", Body=b"text", **kept)
        answer = s3.get_object(Bucket="b", Key="new")
        assert (answer["ContentType"], answer["ContentEncoding"]) == ("text/plain", "gzip")

    def test_a_file_is_streamed(self, store: DevStore, s3: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA * 5000)
        with (tmp_path / "file").open("rb") as file:
            s3.put_object(Bucket="b", Key="new", Body=file)
        assert store.objects["b/new"] == DATA * 5000

    def test_a_missing_bucket_is_not_made(self, store: DevStore, s3: Any) -> None:
        assert refusal(s3.put_object, Bucket="x", Key="k") == (404, "NoSuchBucket")
        assert store.objects.buckets() == ["b"]

    def test_what_must_not_be_ignored_is_refused(self, store: DevStore, s3: Any) -> None:
        where, refused = {"Bucket": "b", "Key": "new"}, (501, "NotImplemented")
        assert refusal(s3.put_object, **where, IfNoneMatch="*") == refused
        assert "b/new" not in store.objects


class TestCopyAndDelete:
    def test_a_copy(self, store: DevStore, s3: Any) -> None:
        s3.put_object(Bucket="b", Key="ä b", Body=b"data", ContentType="text/plain")
        copied = s3.copy_object(Bucket="b", Key="new", CopySource={"Bucket": "b", "Key": "ä b"})
        assert copied["CopyObjectResult"]["ETag"] == s3.head_object(Bucket="b", Key="new")["ETag"]
        assert store.objects["b/new"] == b"data"
        assert s3.head_object(Bucket="b", Key="new")["ContentType"] == "text/plain"

    def test_of_nothing(self, s3: Any) -> None:
        answer = refusal(s3.copy_object, Bucket="b", Key="new", CopySource="b/none")
        assert answer == (404, "NoSuchKey")

    def test_deleted(self, store: DevStore, s3: Any) -> None:
        s3.put_object(Bucket="b", Key="new", Body=b"data")
        for _ in range(2):
            s3.delete_object(Bucket="b", Key="new")
            assert "b/new" not in store.objects
        assert refusal(s3.delete_object, Bucket="x", Key="new") == (404, "NoSuchBucket")


class TestMultipart:
    def test_listed(self, s3: Any) -> None:
        begun = [
            s3.create_multipart_upload(Bucket="b", Key=key)["UploadId"] for key in ("p/1", "p/2")
        ]
        s3.create_multipart_upload(Bucket="b", Key="q")
        listed = s3.list_multipart_uploads(Bucket="b", Prefix="p/")
        found = [(upload["Key"], upload["UploadId"]) for upload in listed["Uploads"]]
        assert found == [("p/1", begun[0]), ("p/2", begun[1])]
        assert not listed["IsTruncated"]

    def test_an_object_in_parts(self, store: DevStore, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        identity = s3.create_multipart_upload(**where)["UploadId"]
        for number, piece in ((2, b"b"), (1, b"wrong"), (10, b"c"), (1, b"a")):
            s3.upload_part(**where, UploadId=identity, PartNumber=number, Body=piece)
        assert "b/large" not in store.objects
        done = s3.complete_multipart_upload(**where, UploadId=identity)
        assert store.objects["b/large"] == b"abc"
        md5s = b"".join(hashlib.md5(p, usedforsecurity=False).digest() for p in (b"a", b"b", b"c"))
        etag = f'"{hashlib.md5(md5s, usedforsecurity=False).hexdigest()}-3"'
        assert s3.head_object(**where)["ETag"] == done["ETag"] == etag
        copied = s3.copy_object(Bucket="b", Key="copy", CopySource=where)
        assert copied["CopyObjectResult"]["ETag"] == etag

    def test_an_aborted_upload_is_gone(self, store: DevStore, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        identity = s3.create_multipart_upload(**where)["UploadId"]
        part = {"UploadId": identity, "PartNumber": 1, "Body": b"x"}
        s3.upload_part(**where, **part)
        s3.abort_multipart_upload(**where, UploadId=identity)
        gone = (404, "NoSuchUpload")
        assert refusal(s3.upload_part, **where, **part) == gone
        assert refusal(s3.complete_multipart_upload, **where, UploadId=identity) == gone
        assert "b/large" not in store.objects

    def test_wrong_parts_are_refused(self, s3: Any) -> None:
        where = {"Bucket": "b", "Key": "large"}
        where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
        answer = refusal(s3.upload_part, **where, PartNumber=-1, Body=b"x")
        assert answer == (400, "InvalidArgument")


class TestCopiedParts:
    @pytest.fixture
    def part(self, s3: Any) -> dict[str, Any]:
        """Return the arguments of a first part."""
        where = {"Bucket": "b", "Key": "large"}
        return where | {
            "UploadId": s3.create_multipart_upload(**where)["UploadId"],
            "PartNumber": 1,
        }

    def test_the_whole_and_ranges(self, store: DevStore, s3: Any, part: dict[str, Any]) -> None:
        store.put("b/ä b", b"more")
        s3.upload_part(**part | {"PartNumber": 4}, Body=b"sent")
        copied = [
            s3.upload_part_copy(**part, CopySource="b/k", CopySourceRange="bytes=0-0"),
            s3.upload_part_copy(
                **part | {"PartNumber": 2}, CopySource="/b/k", CopySourceRange="bytes=150-199"
            ),
            s3.upload_part_copy(
                **part | {"PartNumber": 3}, CopySource={"Bucket": "b", "Key": "ä b"}
            ),
        ]
        pieces = [DATA[:1], DATA[150:], b"more"]
        etags = [hashlib.md5(piece, usedforsecurity=False).hexdigest() for piece in pieces]
        assert [one["CopyPartResult"]["ETag"] for one in copied] == [f'"{etag}"' for etag in etags]
        assert copied[0]["CopyPartResult"]["LastModified"].year >= 2026
        assert "b/large" not in store.objects
        del part["PartNumber"]
        s3.complete_multipart_upload(**part)
        assert store.objects["b/large"] == b"".join([*pieces, b"sent"])

    @pytest.mark.parametrize(
        "asked",
        [
            *("0-2", "bytes=0", "bytes=-5", "bytes=5-", "bytes=a-b", "bytes=0-2,3-5", "lines=0-1"),
            *("bytes=5-4", "bytes=0-200", "bytes=200-200", "bytes=-1-5", "bytes=0-" + "9" * 5000),
        ],
    )
    def test_hostile_ranges(self, s3: Any, part: dict[str, Any], asked: str) -> None:
        answer = refusal(s3.upload_part_copy, **part, CopySource="b/k", CopySourceRange=asked)
        assert answer == (400, "InvalidArgument")

    def test_of_nothing(self, s3: Any, part: dict[str, Any]) -> None:
        gone = {"UploadId": "none"}
        answers = [
            refusal(s3.upload_part_copy, **part, CopySource="b/none"),
            refusal(s3.upload_part_copy, **part, CopySource="b/empty", CopySourceRange="bytes=0-0"),
            refusal(s3.upload_part_copy, **part | gone, CopySource="b/k"),
            refusal(s3.upload_part_copy, **part | {"PartNumber": -1}, CopySource="b/k"),
        ]
        assert answers == [
            (404, "NoSuchKey"),
            (400, "InvalidArgument"),
            (404, "NoSuchUpload"),
            (400, "InvalidArgument"),
        ]
