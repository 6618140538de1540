"""The GCS store against gcp-storage-emulator, another implementation of Google's JSON API."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import asynccontextmanager
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

import streamrec as sr
from streamrec.errors import StoreMisbehaved
from streamrec.stores.blocking import Folder
from tests.stores.conformance import (
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    WritingConformance,
)
from tests.stores.gcs.test_gcs_store import opened
from tests.stores.gcs_probes import Api, GCSProbes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENDPOINT = os.environ.get("STREAMREC_TEST_GCS_ENDPOINT", "")

pytestmark = [
    pytest.mark.gcs,
    # By one worker: the emulator answers one request at a time, and resets some of many at once.
    pytest.mark.xdist_group("gcs"),
    pytest.mark.skipif(
        not ENDPOINT, reason="STREAMREC_TEST_GCS_ENDPOINT is not set; see .ci/gcs.sh"
    ),
]


class Deviation(NamedTuple):
    """One failure of a test: what the emulator does otherwise, and how the test shows it.

    Any other failure is one of the store, or of the test.
    """

    why: str
    error: type[Exception]
    message: str


_NO_VERSION = Deviation(
    "an object's content comes without its generation, so that nothing can be pinned",
    AssertionError,
    r"where None = ObjectInfo\(.*etag=None",
)
_NO_GENERATION = Deviation(_NO_VERSION.why, KeyError, "x-goog-generation")
_NO_CONDITIONS = "preconditions are ignored, and so is generation="
_NO_ENCODING = "Content-Encoding is neither kept in the answer nor unpacked"
_NO_END = "a range past the end is answered with 206 and a negative span"
DEVIATIONS = {
    "test_every_range": Deviation(_NO_END, StoreMisbehaved, "has 0 bytes for bytes 11240-10239/"),
    "test_empty_object": Deviation(
        "an empty upload breaks the connection", RemoteDisconnected, "closed connection"
    ),
    "test_right_pin": _NO_VERSION,
    "test_wrong_pin_names_both_versions": _NO_VERSION,
    "test_listing_knows_size_and_version": _NO_VERSION,
    "test_media_names_the_version": _NO_GENERATION,
    "test_suffix_ranges": Deviation(
        "suffix ranges are ignored", AssertionError, r"assert \(200, .*== \(206, "
    ),
    "test_ranges_past_the_end": Deviation(_NO_END, AssertionError, "assert 206 == 416"),
    "test_connections_are_kept": Deviation(
        "HTTP/1.0: each request has a connection of its own", AssertionError, "assert 0 == 1"
    ),
    "test_a_generation_that_is_gone_is_not_found": Deviation(
        _NO_CONDITIONS, AssertionError, "assert 200 == 404"
    ),
    "test_preconditions_of_reads": Deviation(_NO_CONDITIONS, AssertionError, "assert 200 == 412"),
    "test_listing_from_a_name_on": Deviation(
        "startOffset is ignored", AssertionError, r"assert \['a', 'b', 'c'\] == \['b', 'c'\]"
    ),
    "test_pages": Deviation(
        "a listing is one page, whatever maxResults says",
        AssertionError,
        r"assert \[\['a', 'b', 'd', 'c/'\]\] == ",
    ),
    "test_only_the_fields_that_are_asked_for": Deviation(
        "fields is ignored", AssertionError, r"assert \{'kind': .* == \{'items': "
    ),
    "test_odd_names_are_written_and_deleted": Deviation(
        "a name is cut at a semicolon where it is deleted", AssertionError, r"a&b=c;d.*== \{\}"
    ),
    "test_an_encoded_object_as_it_is_stored": Deviation(_NO_ENCODING, KeyError, "Content-Encoding"),
    "test_an_encoded_object_is_unpacked_for_others": Deviation(
        _NO_ENCODING, AssertionError, r"assert \(206, .* == \(200, "
    ),
}
"""Deviations of gcp-storage-emulator 2026.7 from Google's promises, by the test that shows each.
These tests are expected to fail in this way; one that passes leaves this table."""


@pytest.fixture(autouse=True)
def expect_deviations(request: pytest.FixtureRequest) -> None:
    name = request.node.originalname
    if name in DEVIATIONS:
        why, error, message = DEVIATIONS[name]
        expected = pytest.RaisesExc(error, match=message)
        request.applymarker(pytest.mark.xfail(reason=why, raises=expected, strict=True))


@pytest.fixture
def bucket() -> str:
    name = f"streamrec-{uuid.uuid4().hex[:12]}"
    post("/storage/v1/b", json.dumps({"name": name}).encode(), "application/json")
    return name


def post(path: str, data: bytes, content_type: str = "application/octet-stream") -> None:
    headers = {"Content-Type": content_type}
    with urlopen(Request(ENDPOINT + path, data, headers), timeout=60) as answer:
        answer.read()


def put(bucket: str, name: str, data: bytes) -> None:
    post(f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}", data)


class TestGCSOnTheEmulator(StoreConformance, ListingConformance, WritingConformance):
    @pytest.fixture
    def backend(self, bucket: str) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with opened({"token": "anon", "endpoint_url": ENDPOINT}) as store:
                yield Bench(
                    store,
                    url=lambda name: f"gs://{bucket}/{name}",
                    put=lambda name, data: put(bucket, name, data),
                )

        return make

    # The emulator does not end an upload that is given up, so each one waits for several attempts.
    @pytest.mark.night
    def test_nothing_is_seen_before_the_end_and_nothing_is_left(self, backend: Backend) -> None:
        super().test_nothing_is_seen_before_the_end_and_nothing_is_left(backend)


class TestProbes(GCSProbes):
    @pytest.fixture
    def api(self, bucket: str) -> Api:
        return Api(ENDPOINT, bucket)


class TestUploads:
    OPTIONS: ClassVar = {"token": "anon", "endpoint_url": ENDPOINT}

    @pytest.mark.parametrize("size", [10, 8 << 20, (20 << 20) + 1])
    def test_written(self, bucket: str, size: int) -> None:
        data = bytes(range(250)) * (size // 250 + 1)
        folder = Folder(f"gs://{bucket}/a b/", self.OPTIONS)
        folder.write("x", data[:size])
        assert folder.read("x") == data[:size]

    @pytest.mark.night  # for the same reason
    def test_nothing_is_seen_of_a_writer_that_fails(self, bucket: str) -> None:
        with pytest.raises(ZeroDivisionError):
            with sr.TFRecordWriter(f"gs://{bucket}/x", storage_options=self.OPTIONS) as writer:
                writer.write(bytes(20 << 20))
                raise ZeroDivisionError
        assert Folder(f"gs://{bucket}/", self.OPTIONS).sizes() == {}

    def test_a_dataset_by_size(self, bucket: str) -> None:
        with sr.ShardedWriter(
            f"gs://{bucket}/d/x", shard_bytes=50, labels={"a": 0}, storage_options=self.OPTIONS
        ) as writer:
            writer.write_many([b"%030d" % n for n in range(3)])
        assert sorted(Folder(f"gs://{bucket}/d/", self.OPTIONS).sizes()) == [
            *(f"x-0000{n}-of-00003" for n in range(3)),
            "x.streamrec-index",
            "x.streamrec-manifest.json",
        ]
        assert sr.labels(f"gs://{bucket}/d/x-*", storage_options=self.OPTIONS) == {"a": 0}
