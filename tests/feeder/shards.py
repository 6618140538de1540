"""Small real shards, for tests with the real pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel import frame_records
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from pathlib import Path


def write_shards(directory: Path, *, shards: int, records: int, size: int = 0) -> str:
    """Shards of records ``b"SHARD:RECORD"`` and ``size`` more bytes; gives their pattern."""
    for shard in range(shards):
        payloads = [b"%d:%d" % (shard, record) + bytes(size) for record in range(records)]
        frames = frame_records(RecordRows.of(payloads))
        (directory / f"shard-{shard}.tfrecord").write_bytes(frames.tobytes())
    return f"{directory}/shard-*.tfrecord"
