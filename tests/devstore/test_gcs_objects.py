"""The probes of GCS's API against devstore, and cases that they leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.devstore import DevStore, FaultRule
from tests.stores.gcs_probes import Api, GCSProbes
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS = {"Authorization": "Bearer testtoken"}


class TestProbesOfDevstore(GCSProbes):
    @pytest.fixture
    def api(self) -> Iterator[Api]:
        with DevStore() as devstore:
            devstore.objects.create_bucket("bucket")
            yield Api(devstore.endpoint, "bucket", HEADERS)


@asynchronous
async def test_a_cancelled_upload() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.objects.create_bucket("ours")
        path = f"/upload{gcs.objects}?uploadType=resumable&name=x"
        place = (await gcs.call("POST", path, b"{}")).headers["Location"]
        assert (await gcs.call("DELETE", place)).status == 499
        assert (await gcs.call("PUT", place, b"data")).status == 404


@pytest.mark.parametrize("span", ["", "nonsense", "bytes 1-4/5", "bytes a-b/5"])
@asynchronous
async def test_a_part_that_does_not_follow(span: str) -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.objects.create_bucket("ours")
        path = f"/upload{gcs.objects}?uploadType=resumable"
        place = (await gcs.call("POST", path, b'{"name": "x"}')).headers["Location"]
        assert (await gcs.call("PUT", place, b"data", Content_Range=span)).status == 400
        done = await gcs.call("PUT", place, b"data", Content_Range="bytes 0-3/4")
        assert done.document["name"] == "x"
        assert store.objects["ours/x"] == b"data"


@asynchronous
async def test_an_object_that_is_not_gzip_cannot_be_unpacked() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data", {"Content-Encoding": "gzip"})
        assert (await gcs.call("GET", gcs.media("x"))).status == 503


@asynchronous
async def test_faults_change_the_version_and_the_conditions() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data")
        store.faults = [FaultRule(etag="7")]
        assert (await gcs.call("GET", gcs.media("x"))).headers["x-goog-generation"] == "7"
        assert (await gcs.call("GET", gcs.media("x", "&generation=7"))).status == 200
        store.faults = [FaultRule(ignore_preconditions=True)]
        assert (await gcs.call("GET", gcs.media("x", "&generation=7"))).status == 200
        store.faults = [FaultRule(ignore_range=True)]
        assert (await gcs.call("GET", gcs.media("x"), Range="bytes=0-0")).body == b"data"
