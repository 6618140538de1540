"""Read from one of two feeders, which shuts down: the loop does not notice.

Run it with ``python examples/feeder_client.py``: it starts ``streamrec serve`` itself, twice.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURATION = """
[server]
listen = ["tcp://127.0.0.1:0"]
status = ""

[datasets.numbers]
source = {source}
batch_size = 50
shuffle = true
shuffle_window = "64KiB"
features.id = {{ dtype = "int64" }}
features.text = {{ dtype = "bytes" }}
"""


def write(directory: Path) -> Path:
    """Write shards of 10,000 records and the feeder's configuration; return the latter."""
    for shard in range(4):
        with sr.TFRecordWriter(directory / f"numbers-{shard:05}-of-00004.tfrecord") as writer:
            numbers = range(shard * 2500, (shard + 1) * 2500)
            writer.write_many({"id": number, "text": "x" * 4000} for number in numbers)
    path = directory / "feeder.toml"
    path.write_text(CONFIGURATION.format(source=json.dumps(f"{directory}/numbers-*.tfrecord")))
    return path


@contextlib.contextmanager
def feeder(configuration: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a feeder; yield its host and port, and its process."""
    command = [sys.executable, "-m", "streamrec", "serve", str(configuration), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["listen"][0].removeprefix("tcp://"), process
        finally:
            process.terminate()


def main() -> None:
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        configuration = write(Path(name))
        with feeder(configuration) as (first, process), feeder(configuration) as (second, _):
            address = f"tcp://{first},{second}/numbers"
            with sr.connect(address, rank=0, world_size=1) as stream:
                for batch in stream:
                    seen.extend(batch["id"].tolist())
                    if batch.next_position.step == 3:
                        process.terminate()  # as an orchestrator would
                        print(f"after {len(seen):,} records {first} is told to end")
                print(f"the stream has connected anew {stream.statistics()['reconnections']} times")
    assert sorted(seen) == list(range(10_000)), "every record exactly once"
    print(f"received {len(seen):,} records, every one exactly once")


if __name__ == "__main__":
    main()
