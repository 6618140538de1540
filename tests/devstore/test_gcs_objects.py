"""The probes of GCS's API against devstore, and cases that they leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.devstore import DevStore, Fault
from tests.stores.gcs_probes import Api, GCSProbes
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADERS = {"Authorization": "Bearer testtoken"}


class TestProbesOfDevstore(GCSProbes):
    @pytest.fixture(params=["memory", "directory"])
    def api(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
        root = tmp_path / "root" if request.param == "directory" else None
        with DevStore(root=root) as devstore:
            devstore.objects.create_bucket("bucket")
            yield Api(devstore.endpoint, "bucket", HEADERS)


@asynchronous
async def test_a_cancelled_upload() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.objects.create_bucket("ours")
        path = f"/upload{gcs.objects}?uploadType=resumable&name=x"
        place = (await gcs.call("POST", path)).headers["Location"]
        assert (await gcs.call("DELETE", place)).status == 499
        assert (await gcs.call("PUT", place, b"data")).status == 410


@asynchronous
async def test_an_object_that_is_not_gzip_cannot_be_unpacked() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data", {"Content-Encoding": "gzip"})
        assert (await gcs.call("GET", gcs.media("x"))).status == 503
        kept = {"Content-Encoding": "gzip", "Cache-Control": "no-transform"}
        store.put("ours/x", b"data", kept)
        assert (await gcs.call("GET", gcs.media("x"))).body == b"data"


@asynchronous
async def test_faults_change_the_version_and_the_conditions() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data")
        store.faults = [Fault(etag="7")]
        assert (await gcs.call("GET", gcs.media("x"))).headers["x-goog-generation"] == "7"
        assert (await gcs.call("GET", gcs.media("x", "&generation=7"))).status == 200
        store.faults = [Fault(ignore_preconditions=True)]
        assert (await gcs.call("GET", gcs.media("x", "&generation=7"))).status == 200
        assert (await gcs.call("GET", gcs.media("x", "&ifGenerationNotMatch=7"))).status == 200
        assert (await gcs.upload("x", b"new", "&ifGenerationMatch=7")).status == 200
        store.faults = [Fault(ignore_range=True)]
        assert (await gcs.call("GET", gcs.media("x"), Range="bytes=0-0")).body == b"new"


@asynchronous
async def test_conditions_in_the_headers_that_xml_has() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data")
        answer = await gcs.call("GET", gcs.media("x"), x_goog_if_generation_match="7")
        assert answer.status == 412
