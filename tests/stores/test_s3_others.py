"""Other servers of S3, such as rclone, moto and Swift, which a variable names; by hand.

Each is ``name=endpoint,key,secret``, and a semicolon stands between two::

    STREAMREC_TEST_S3_OTHERS='rclone=http://127.0.0.1:8081,test,testsecret' \\
        pytest tests/stores/test_s3_others.py
"""

from __future__ import annotations

import os
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.stores.s3.s3_store import S3Store
from tests.stores.conformance import (
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    WritingConformance,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NAMED = os.environ.get("STREAMREC_TEST_S3_OTHERS", "")
OTHERS = dict(one.split("=", 1) for one in filter(None, NAMED.split(";")))

pytestmark = pytest.mark.skipif(not OTHERS, reason="STREAMREC_TEST_S3_OTHERS is not set")


@pytest.fixture(params=sorted(OTHERS) or ["none"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    endpoint, key, secret = OTHERS[request.param].split(",")
    region = {"region_name": "us-east-1"}
    return {"endpoint_url": endpoint, "key": key, "secret": secret, "client_kwargs": region}


@pytest.fixture
def client(options: dict[str, Any]) -> Any:
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path"}, request_checksum_calculation="when_required"
        ),
    )


@pytest.fixture
def bucket(client: Any) -> str:
    name = f"streamrec-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    return name


class TestConformance(StoreConformance, ListingConformance, WritingConformance):
    @pytest.fixture
    def backend(self, options: dict[str, Any], client: Any, bucket: str) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            store = S3Store(options)
            try:
                yield Bench(
                    store,
                    url=lambda name: f"s3://{bucket}/{name}",
                    put=lambda name, data: client.put_object(Bucket=bucket, Key=name, Body=data),
                )
            finally:
                await store.aclose()

        return make


@pytest.mark.parametrize("by_record", [False, True])
def test_a_state_goes_on_from_a_glob_with_names(
    options: dict[str, Any], bucket: str, by_record: bool
) -> None:
    """Objects of several parts, which some servers list with other ETags."""
    url = f"s3://{bucket}/d/t.tfrecord"
    with sr.ShardedWriter(url, shard_bytes="8MB", storage_options=options) as writer:
        writer.write_many({"id": i, "x": bytes(100_000)} for i in range(120))
    features = {"id": sr.FixedLenFeature((), "int64")}
    named: dict[str, Any] = {"rank": 0, "world_size": 1, "engine": "thread", "index": by_record}
    named |= {"batch_size": 16, "storage_options": options}
    with sr.open(f"s3://{bucket}/d/t-*.tfrecord", features, **named) as stream:
        for _ in range(3):
            next(stream)
        state = stream.state_dict()
        rest = [batch["id"].tolist() for batch in stream]
    names = f"s3://{bucket}/d/t-{{00000..00001}}-of-00002.tfrecord"
    for source in (f"s3://{bucket}/d/t-*.tfrecord", names):
        with sr.open(source, features, **named) as stream:
            stream.load_state_dict(state)
            assert [batch["id"].tolist() for batch in stream] == rest
