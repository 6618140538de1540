"""Stores behind the fault proxy: devstore's S3, GCS and http, Ceph, and an emulator of GCS."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import botocore.session

from streamrec.devstore import DevStore
from tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CEPH = os.environ.get("STREAMREC_TEST_S3_ENDPOINT")
EMULATOR = os.environ.get("STREAMREC_TEST_GCS_ENDPOINT")
CEPH_KEYS = {"key": "test", "secret": "testsecret"}


@dataclass
class ProxiedStore:
    """A store behind a proxy."""

    proxy: FaultProxy
    put: Callable[[str, bytes], object]
    """A function that writes an object, past the proxy."""
    root: str
    """The URL of the objects' directory."""
    options: dict[str, Any] = field(default_factory=dict)
    pins: bool = True
    """True if the store says which version it sends."""

    def url(self, name: str) -> str:
        """Return the URL of an object, or of a range of them."""
        return f"{self.root}/{name}"


@contextmanager
def s3() -> Iterator[ProxiedStore]:
    """Yield devstore as S3."""
    with DevStore() as store, FaultProxy(store.endpoint) as proxy:
        options = {**store.storage_options, "endpoint_url": proxy.endpoint}
        yield ProxiedStore(proxy, _putter(store), "s3://bucket", options)


@contextmanager
def gcs() -> Iterator[ProxiedStore]:
    """Yield devstore as GCS."""
    with DevStore() as store, FaultProxy(store.endpoint) as proxy:
        options = {**store.gcs_options, "endpoint_url": proxy.endpoint}
        yield ProxiedStore(proxy, _putter(store), "gs://bucket", options)


@contextmanager
def http() -> Iterator[ProxiedStore]:
    """Yield devstore as a plain web server."""
    with DevStore(anonymous=True) as store, FaultProxy(store.endpoint) as proxy:
        yield ProxiedStore(proxy, _putter(store), f"{proxy.endpoint}/bucket")


@contextmanager
def ceph() -> Iterator[ProxiedStore]:
    """Yield Ceph's gateway."""
    assert CEPH is not None
    bucket = f"streamrec-{uuid.uuid4().hex[:12]}"
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=CEPH,
        region_name="us-east-1",
        aws_access_key_id=CEPH_KEYS["key"],
        aws_secret_access_key=CEPH_KEYS["secret"],
    )
    client.create_bucket(Bucket=bucket)

    def put(name: str, data: bytes) -> None:
        client.put_object(Bucket=bucket, Key=name, Body=data)

    with FaultProxy(CEPH) as proxy:
        yield ProxiedStore(
            proxy, put, f"s3://{bucket}", {**CEPH_KEYS, "endpoint_url": proxy.endpoint}
        )
    client.close()


@contextmanager
def emulator() -> Iterator[ProxiedStore]:
    """Yield gcp-storage-emulator, which names no generation with an object's content."""
    assert EMULATOR is not None
    bucket = f"streamrec-{uuid.uuid4().hex[:12]}"
    _post("/storage/v1/b", json.dumps({"name": bucket}).encode(), "application/json")

    def put(name: str, data: bytes) -> None:
        _post(f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", data)

    with FaultProxy(EMULATOR) as proxy:
        options = {"token": "anon", "endpoint_url": proxy.endpoint}
        yield ProxiedStore(proxy, put, f"gs://{bucket}", options, pins=False)


def _putter(store: DevStore) -> Callable[[str, bytes], object]:
    return lambda name, data: store.put(f"bucket/{name}", data)


def _post(path: str, data: bytes, content_type: str = "application/octet-stream") -> None:
    request = Request(f"{EMULATOR}{path}", data, {"Content-Type": content_type})
    with urlopen(request, timeout=60) as answer:
        answer.read()
