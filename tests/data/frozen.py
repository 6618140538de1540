"""States, messages and an index as streamrec 0.1.0 wrote them, and what makes them.

``frozen.json`` freezes version 3 of states, version 3 of the protocol and version 2 of indexes: a
later streamrec that reads these versions must read these very bytes. ``python -m
tests.data.frozen`` writes it anew, which is right only when a version is raised: the cases of the
version before then stay, in a file of their own, for as long as it is read.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import streamrec as sr
from streamrec.formats.shards.index_names import index_url
from streamrec.pipeline.batch.payload import encode_columns
from streamrec.values.columns import BytesColumn, Ragged
from streamrec.wire.messages import (
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Ping,
    Release,
    Shared,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role
from tests.pipeline.small_datasets import write_index
from tests.wire.support import feed, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.streams.stream import Stream
    from streamrec.values.columns import Column
    from streamrec.wire.messages import Message

HERE = Path(__file__).parent
FILE = HERE / "frozen.json"
SHARDS = sorted(HERE.glob("numbers-*.tfrecord"))
"""Three shards of 20 records, which TensorFlow wrote."""
TAKEN = 3
"""Batches before a state is saved."""
ORDERS: dict[str, dict[str, Any]] = {
    "by shard": {"lanes": 2},
    "by shard, shuffled": {"lanes": 2, "shuffle": True, "seed": 7, "epochs": 2},
    "by shard, rank 1 of 2": {"lanes": 4, "rank": 1, "world_size": 2, "epochs": None},
    "by record": {"lanes": 4, "index": True, "shuffle": True, "seed": 7, "remainder": "drop"},
    "by record, rank 1 of 2": {"lanes": 4, "index": True, "rank": 1, "world_size": 2},
}
FEATURES = {"id": sr.FixedLenFeature((), "int64")}
CHUNK_BYTES = 500
COLUMNS: dict[str, Column] = {
    "array": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bytes": BytesColumn.of([b"one", b""]),
    "ragged": Ragged(np.arange(3, dtype=np.int64), np.array([0, 3, 3])),
}
_BEGIN: list[tuple[Role, Message]] = [
    (
        Role.CLIENT,
        Hello(dataset="train", world_size=2, batch_size=2, token="t", position_version=3),
    ),
    (Role.SERVER, Welcome(3, b"fingerprint", b"settings")),
]
TALKS: dict[str, list[tuple[Role, Message]]] = {
    "a feeder that drains": [
        *_BEGIN,
        (Role.CLIENT, Subscribe(1, b'{"version": 3}')),
        (Role.CLIENT, Credit(1 << 30)),
        (Role.CLIENT, Ping(7)),
        (Role.SERVER, encode_columns(COLUMNS, 2)),
        (Role.SERVER, Shared(b"metadata", (8192, 0), (100, 7))),
        (Role.SERVER, Statistics(b"counters")),
        (Role.CLIENT, Release((0, 4096))),
        (Role.SERVER, End(b"position")),
        (Role.SERVER, Goaway("it drains")),
    ],
    "a feeder that fails": [*_BEGIN, (Role.SERVER, Fault(b"fields", retryable=True))],
}
"""Conversations with a message of each kind."""


def open_order(folder: Path, settings: Mapping[str, Any]) -> Stream[Any]:
    """Open the shards of a folder in one of :data:`ORDERS`."""
    source = str(folder / "numbers-*.tfrecord")
    return sr.open(source, FEATURES, batch_size=4, engine="thread", **settings)


def next_ids(stream: Stream[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in sr.take(stream, 4)]


def orders(folder: Path) -> dict[str, Any]:
    """Return the state after some batches, and the ids of the next batches, by order."""
    made: dict[str, Any] = {}
    for name, settings in ORDERS.items():
        with open_order(folder, settings) as stream:
            list(sr.take(stream, TAKEN))
            made[name] = {"state": stream.state_dict(), "next": next_ids(stream)}
    return made


def sent(talk: list[tuple[Role, Message]]) -> Iterator[tuple[Role, bytes]]:
    """Yield who sends which bytes in a conversation, with the answers to pings."""
    ends = {role: Connection(role) for role in Role}
    for role, message in talk:
        data = joined(ends[role].send(message))
        yield role, data
        feed(ends[role.peer], data)
        if answer := joined(ends[role.peer].replies()):
            yield role.peer, answer
            feed(ends[role], answer)


def copy_shards(folder: Path) -> str:
    """Copy the shards, and return the URL at which their index is looked for."""
    return index_url([shutil.copy(str(path), str(folder)) for path in SHARDS])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        url = copy_shards(Path(name))
        write_index(f"{name}/numbers-*.tfrecord", CHUNK_BYTES)
        made = {
            "index": b64encode(Path(url).read_bytes()).decode(),
            "orders": orders(Path(name)),
            "talks": {
                title: [[role.value, b64encode(data).decode()] for role, data in sent(talk)]
                for title, talk in TALKS.items()
            },
        }
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
