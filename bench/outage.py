"""Reads through an outage: Ceph's gateway is killed in mid-epoch, and started again.

::

    export STREAMREC_TEST_S3_ENDPOINT=$(.ci/ceph.sh start)
    python -m bench.outage --seconds 20

It prints one JSON object. The exit code is 1 where a record is lost, repeated or out of order.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import botocore.session
import click
import numpy as np

import streamrec as sr
from bench.harness import Report, Run, benchmark
from bench.machine import ROOT
from streamrec.formats.shards.tfrecord import frame

KEYS = {"key": "test", "secret": "testsecret"}
SHARDS, RECORDS, SIZE = 32, 200, 64 << 10
"""420 MB: they take seconds, and are more than is read ahead."""
BATCH_SIZE = 64
BEFORE = 10
"""Number of batches that are taken before the gateway is killed."""


@dataclass
class Reading:
    """The records that a loop over the stream has taken, and its longest wait."""

    numbers: list[int] = field(default_factory=list)
    longest_wait: float = 0.0
    batches: int = 0

    def take(self, stream: Iterator[sr.Batch]) -> bool:
        """Take a batch; return whether there was one."""
        began = time.perf_counter()
        batch = next(stream, None)
        self.longest_wait = max(self.longest_wait, time.perf_counter() - began)
        if batch is None:
            return False
        self.batches += 1
        self.numbers += [int.from_bytes(record[:8], "little") for record in batch.records.to_list()]
        return True


@benchmark("outage")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds without the gateway.")
@click.option("--engine", default="process", show_default=True, help="Engine of the stream.")
def main(_: Run, *, seconds: float, engine: str) -> Report:
    endpoint = os.environ["STREAMREC_TEST_S3_ENDPOINT"]
    bucket = fill(endpoint)
    options = {**KEYS, "endpoint_url": endpoint}
    source = f"s3://{bucket}/part-{{00000..{SHARDS - 1:05}}}.tfrecord"
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "engine": engine}
    with sr.open(
        source, storage_options=options, memory_budget="64MiB", rank=0, world_size=1, **settings
    ) as stream:
        reading = read(iter(stream), seconds)
        statistics = stream.statistics()
    right = reading.numbers == expected()
    facts: dict[str, Any] = {"right": right, "longest_wait_seconds": round(reading.longest_wait, 2)}
    facts |= {"outage_seconds": seconds, "statistics": statistics}
    return Report("", facts, failed=not right, shown=json.dumps(facts))


def fill(endpoint: str) -> str:
    """Write the shards to a new bucket, and return its name."""
    bucket = f"outage-{uuid.uuid4().hex[:12]}"
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS["key"],
        aws_secret_access_key=KEYS["secret"],
    )
    client.create_bucket(Bucket=bucket)
    for shard in range(SHARDS):
        body = b"".join(frame(record(shard, n)) for n in range(RECORDS))
        client.put_object(Bucket=bucket, Key=f"part-{shard:05}.tfrecord", Body=body)
    client.close()
    return bucket


def record(shard: int, number: int) -> bytes:
    return np.full(SIZE // 8, shard * RECORDS + number, "<u8").tobytes()


def expected() -> list[int]:
    """Return the numbers of all records in their order."""
    return [shard * RECORDS + n for n in range(RECORDS) for shard in range(SHARDS)]


def read(stream: Iterator[sr.Batch], seconds: float) -> Reading:
    """Take all batches, and kill the gateway after the first ones."""
    reading = Reading()
    while reading.batches < BEFORE:
        reading.take(stream)
    command = [str(ROOT / ".ci" / "ceph.sh"), "outage", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outage:
        assert outage.stdout is not None
        click.echo(outage.stdout.readline().strip(), err=True)
        while reading.take(stream):
            pass
    return reading


if __name__ == "__main__":
    main()
