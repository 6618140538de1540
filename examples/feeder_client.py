"""Read from a feeder, and go on at another when the first one shuts down.

Run it with ``python examples/feeder_client.py``: it starts ``streamrec serve`` itself, twice.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURATION = """
[server]
listen = ["tcp://127.0.0.1:0"]
status = "127.0.0.1:0"

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
    """Run a feeder; yield the address of its dataset, and its process."""
    command = [sys.executable, "-m", "streamrec", "serve", str(configuration), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"{json.loads(process.stdout.readline())['listen'][0]}/numbers", process
        finally:
            process.terminate()


def read(address: str, state: Any) -> Iterator[sr.Batch]:
    """Yield batches from a feeder, from a state on."""
    stream = sr.connect(address, rank=0, world_size=1)
    if state is not None:
        stream.load_state_dict(state)
    with stream:
        yield from stream


def main() -> None:
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        configuration = write(Path(name))
        state, done = None, False
        while not done:
            with feeder(configuration) as (address, process):
                try:
                    for batch in read(address, state):
                        seen.extend(batch["id"].tolist())
                        if batch.next_position.step == 3:
                            process.terminate()  # as an orchestrator would
                    done = True
                except sr.FeedError as error:
                    state = error.position
                    print(f"after {len(seen):,} records: {type(error).__name__}: {error}")
    assert sorted(seen) == list(range(10_000)), "every record exactly once"
    print(f"received {len(seen):,} records, every one exactly once")


if __name__ == "__main__":
    main()
