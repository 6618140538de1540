from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import s3fs
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.refusals import Refusal
from streamrec.devstore.s3 import content_encoding, decode, operation_of

if TYPE_CHECKING:
    from streamrec.devstore import DevStore


UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def body_of(pieces: list[bytes], checksum: bytes | None = None) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    trailer = b"" if checksum is None else b"x-amz-checksum-crc32:%s\r\n" % checksum
    return chunks + b"0\r\n" + trailer + b"\r\n"


def headers(length: object) -> dict[str, str]:
    return {"x-amz-content-sha256": UNSIGNED, "x-amz-decoded-content-length": str(length)}


def crc32_of(content: bytes) -> bytes:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big"))


@given(pieces=st.lists(st.binary(max_size=40)), has_checksum=st.booleans())
def test_chunks_are_joined(pieces: list[bytes], *, has_checksum: bool) -> None:
    content = b"".join(pieces)
    body = body_of(pieces, crc32_of(content) if has_checksum else None)
    assert decode(body, headers(len(content))) == content


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1), data=st.data())
def test_a_body_that_is_cut_off_is_refused(pieces: list[bytes], data: st.DataObject) -> None:
    body = body_of(pieces)
    cut = data.draw(st.integers(0, len(body) - len("0\r\n\r\n")))
    with pytest.raises(Refusal) as caught:
        decode(body[:cut], headers(sum(map(len, pieces))))
    assert caught.value.code == "IncompleteBody"


@given(body=st.binary(max_size=60))
def test_any_other_body_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        decode(body, headers("none"))


def test_another_length_or_checksum() -> None:
    with pytest.raises(Refusal, match="another length"):
        decode(body_of([b"data"]), headers(5))
    with pytest.raises(Refusal, match="CRC32"):
        decode(body_of([b"data"], crc32_of(b"Data")), headers(4))


def test_chunks_are_no_encoding_of_the_object() -> None:
    assert content_encoding("aws-chunked") == ""
    assert content_encoding("aws-chunked, gzip") == "gzip"
    assert content_encoding("gzip,aws-chunked") == "gzip"


ODD_KEYS = [
    "a b",
    "a%2Fb",
    "a+b",
    "a&b=c",
    "ä/ö",
    "q?x=1#y",
    "<&>",
    "'\"",
    "~",
    "e\u0301",
    "\U0001f600",
]


def code_of(error: ClientError) -> tuple[int, str]:
    response: Any = error.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


@pytest.mark.parametrize(
    ("method", "path", "query", "kind"),
    [
        ("GET", "/b", {"list-type": "2", "prefix": "x"}, "ListObjectsV2"),
        ("GET", "/b", {"list-type": "1"}, "Unknown"),
        ("GET", "/b", {}, "Unknown"),
        ("GET", "/b", {"versions": ""}, "Unknown"),
        ("HEAD", "/b", {}, "HeadBucket"),
        ("GET", "/b/k", {"X-Amz-Algorithm": "x"}, "GetObject"),
        ("GET", "/b/k", {"acl": ""}, "Unknown"),
        ("PUT", "/b/k", {"partNumber": "1", "uploadId": "x"}, "UploadPart"),
        ("POST", "/b/k", {"uploads": ""}, "CreateMultipartUpload"),
        ("PATCH", "/b/k", {}, "Unknown"),
    ],
)
def test_operations(method: str, path: str, query: dict[str, str], kind: str) -> None:
    assert operation_of(method, path, query)[0] == kind


@pytest.mark.parametrize(
    ("path", "bucket", "key"),
    [
        ("/", "", ""),
        ("/b", "b", ""),
        ("/b/", "b", ""),
        ("/b/k", "b", "k"),
        ("/b/a//k/", "b", "a//k/"),
        ("/b//k", "b", "/k"),
    ],
)
def test_bucket_and_key(path: str, bucket: str, key: str) -> None:
    assert operation_of("GET", path, {})[1:] == (bucket, key)


class TestBuckets:
    def test_create(self, store: DevStore, s3: Any) -> None:
        for name in ("b", "a", "a"):
            s3.create_bucket(Bucket=name)
        s3.head_bucket(Bucket="a")
        assert store.objects.buckets() == ["a", "b"]

    def test_a_missing_bucket(self, s3: Any) -> None:
        with pytest.raises(ClientError) as caught:
            s3.list_objects_v2(Bucket="missing")
        assert code_of(caught.value) == (404, "NoSuchBucket")

    def test_head_of_a_missing_bucket(self, s3: Any) -> None:
        with pytest.raises(ClientError) as caught:
            s3.head_bucket(Bucket="missing")
        assert code_of(caught.value) == (404, "404")

    def test_what_is_not_implemented_says_so(self, store: DevStore, s3: Any) -> None:
        store.put("b/k", b"")
        with pytest.raises(ClientError) as caught:
            s3.get_bucket_acl(Bucket="b")
        assert code_of(caught.value) == (501, "NotImplemented")
        with pytest.raises(ClientError) as caught:
            s3.list_objects(Bucket="b")
        assert code_of(caught.value) == (501, "NotImplemented")


class TestListing:
    def test_an_empty_bucket(self, s3: Any) -> None:
        s3.create_bucket(Bucket="b")
        page = s3.list_objects_v2(Bucket="b")
        assert (page["KeyCount"], page["IsTruncated"], page.get("Contents")) == (0, False, None)

    def test_sizes_etags_and_times(self, store: DevStore, s3: Any) -> None:
        etag = store.put("b/k", b"data")
        entry = s3.list_objects_v2(Bucket="b")["Contents"][0]
        head = s3.head_object(Bucket="b", Key="k")
        assert (entry["Key"], entry["Size"], entry["ETag"]) == ("k", 4, f'"{etag}"')
        assert head["ETag"] == entry["ETag"]
        assert head["LastModified"] == entry["LastModified"].replace(microsecond=0)

    def test_pages(self, store: DevStore, s3: Any) -> None:
        keys = [f"k{n:03}" for n in range(23)]
        for key in keys:
            store.put(f"b/{key}", b"")
        paginator = s3.get_paginator("list_objects_v2")
        pages = list(paginator.paginate(Bucket="b", PaginationConfig={"PageSize": 5}))
        assert [len(page["Contents"]) for page in pages] == [5, 5, 5, 5, 3]
        assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys
        assert [page["IsTruncated"] for page in pages] == [True] * 4 + [False]

    def test_delimiter_prefix_and_start(self, store: DevStore, s3: Any) -> None:
        for key in ("a/1", "a/2", "b/1", "c"):
            store.put(f"b/{key}", b"")
        page = s3.list_objects_v2(Bucket="b", Delimiter="/")
        assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == ["a/", "b/"]
        assert [entry["Key"] for entry in page["Contents"]] == ["c"]
        page = s3.list_objects_v2(Bucket="b", Prefix="a/", StartAfter="a/1")
        assert [entry["Key"] for entry in page["Contents"]] == ["a/2"]
        assert page["Prefix"] == "a/"

    def test_odd_keys(self, store: DevStore, s3: Any) -> None:
        s3.create_bucket(Bucket="b")
        for key in ODD_KEYS:
            s3.put_object(Bucket="b", Key=key, Body=key.encode())
        listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket="b")["Contents"]]
        assert listed == sorted(ODD_KEYS)
        for key in ODD_KEYS:
            assert s3.get_object(Bucket="b", Key=key)["Body"].read() == key.encode()
            page = s3.list_objects_v2(Bucket="b", Prefix=key)
            assert page["Contents"][0]["Key"] == page["Prefix"] == key

    def test_a_wrong_limit(self, s3: Any) -> None:
        s3.create_bucket(Bucket="b")
        with pytest.raises(ClientError) as caught:
            s3.list_objects_v2(Bucket="b", MaxKeys=-1)
        assert code_of(caught.value) == (400, "InvalidArgument")


class TestS3fs:
    @pytest.fixture
    def files(self, store: DevStore, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        return s3fs.S3FileSystem(**store.storage_options, skip_instance_cache=True)

    def test_glob_find_and_read(self, store: DevStore, files: Any) -> None:
        for n in range(12):
            store.put(f"b/train/{n:05}.tfrecord", bytes([n]) * n)
        store.put("b/other", b"x")
        assert len(files.glob("b/train/*.tfrecord")) == 12
        assert files.ls("b", detail=False) == ["b/other", "b/train"]
        assert sum(entry["size"] for entry in files.find("b", detail=True).values()) == 67
        assert files.cat_file("b/train/00009.tfrecord", start=2, end=5) == b"\t\t\t"

    def test_write_in_one_and_in_many_parts(self, store: DevStore, files: Any) -> None:
        large = bytes(range(256)) * 50_000  # 12.8 MB
        files.mkdir("b")
        files.pipe("b/small", b"small")
        with files.open("b/large", "wb", block_size=5 << 20) as file:
            for start in range(0, len(large), 1_000_000):
                file.write(large[start : start + 1_000_000])
        assert store.objects["b/small"] == b"small"
        assert store.objects["b/large"] == large
        assert store.statistics.by_kind["UploadPart"] >= 1
