"""Processes of clients of each system, and the servers of those that have one.

``python -m bench.feeding.clients KIND`` is a process of clients: it opens one, lets it take
batches for a while, and says what came. Each line of its standard input is a command, each line of
its output the answer:

* ``{"do": "open", "name": ..., "arguments": {...}}``: connect, take a batch, say its size;
* ``{"do": "run", "name": ..., "start": ..., "stop": ...}``: take batches until ``stop``, and count
  those that come after ``start``; both are times of the system's monotonic clock;
* ``{"do": "close", "name": ...}``.

``python -m bench.feeding.clients KIND serve`` is the server of a kind. Each kind imports what it
needs: an interpreter that has TensorFlow may not have streamrec.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.feeding import KEPT

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    import streamrec as sr

REQUEST = struct.Struct("<Q")
Opener = Callable[[dict[str, Any]], Iterator[Any]]
"""Connects a client, and yields its batches."""


class Counted(NamedTuple):
    """The records that came in time, and the seconds that each batch was waited for."""

    records: int
    waits: list[float]


def take(batches: Iterator[Any], count: Callable[[Any], int], start: float, stop: float) -> Counted:
    records, waits = 0, []
    while (asked := monotonic()) < stop:
        came = count(next(batches))
        now = monotonic()
        if start <= now < stop:
            records += came
            waits.append(now - asked)
    return Counted(records, waits)


class Host:
    """The clients of this process, all of one kind."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._clients: dict[str, Iterator[Any]] = {}

    def open(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Connect a client, which takes a batch; return the size of that."""
        batches = self._clients[name] = self._kind.open(arguments)
        first = next(batches)
        return {"records": self._kind.count(first), "nbytes": self._kind.size(first)}

    def run(self, name: str, start: float, stop: float) -> dict[str, Any]:
        """Let a client take batches until a time."""
        counted = take(self._clients[name], self._kind.count, start, stop)
        return {"records": counted.records, "waits": [round(wait, 6) for wait in counted.waits]}

    def close(self, name: str) -> dict[str, Any]:
        """Disconnect a client."""
        with suppress(AttributeError):
            self._clients.pop(name).close()  # type: ignore[attr-defined]
        return {}


# -- bytes by ``sendall`` and ``recv_into``, and nothing else --------------------------------------


class Came(NamedTuple):
    """A batch that has come."""

    records: int
    nbytes: int


def serve_bare() -> None:
    """Send batches of the size that each client asks for, until the input ends."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(json.dumps({"listen": server.getsockname()}), flush=True)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    sys.stdin.read()


def _accept(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_send, args=(client,), daemon=True).start()


def _send(client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    [size] = REQUEST.unpack(client.recv(REQUEST.size, socket.MSG_WAITALL))
    try:
        for batch in itertools.cycle(ready(size)):
            client.sendall(batch)
    except OSError:  # the client has left
        client.close()


@cache
def ready(size: int) -> list[bytes]:
    """Return some batches, which all clients share."""
    return [os.urandom(size) for _ in range(KEPT)]


def open_bare(arguments: dict[str, Any]) -> Iterator[Came]:
    """Receive batches into the same memory again and again."""
    came = Came(arguments["records"], arguments["nbytes"])
    with socket.create_connection(tuple(arguments["address"])) as sock:
        sock.sendall(REQUEST.pack(came.nbytes))
        buffer = memoryview(bytearray(came.nbytes))
        while sock.recv_into(buffer, 0, socket.MSG_WAITALL) == came.nbytes:
            yield came


# -- streamrec: clients of a feeder, or with engine processes of their own -------------------------


def from_feeder(arguments: Mapping[str, Any]) -> Iterator[sr.Batch]:
    """Read from a feeder with a plain ``for``."""
    import streamrec as sr

    given = {} if arguments["ca"] is None else {"tls": arguments["ca"]}
    with sr.connect(arguments["address"], rank=0, world_size=1, **given) as stream:
        yield from stream


def from_engine(arguments: Mapping[str, Any]) -> Iterator[sr.Batch]:
    """Read local shards with a plain ``for`` and an engine process."""
    with open_shards(arguments, engine="process") as stream:
        yield from stream


def open_shards(arguments: Mapping[str, Any], **settings: Any) -> sr.Stream[Any]:
    """Open local shards, again and again."""
    import streamrec as sr
    from bench.readers.streams import specs

    features = arguments["features"]
    given: dict[str, Any] = {"rank": 0, "world_size": 1, **settings}
    return sr.open(
        arguments["source"],
        specs(features) if features else None,
        batch_size=arguments["batch_size"],
        memory_budget=arguments["memory_budget"],
        epochs=None,
        **given,
    )


def arrays(batch: sr.Batch) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a batch by name, two of a column of strings."""
    import numpy as np

    from streamrec import BytesColumn

    found: dict[str, np.ndarray[Any, Any]] = {}
    columns = batch.columns or {"records": batch.records}
    for name, column in columns.items():
        if isinstance(column, BytesColumn):
            found |= {f"{name}.values": column.values, f"{name}.offsets": column.offsets}
        else:
            found[name] = np.asarray(column)
    return found


def nbytes(batch: sr.Batch) -> int:
    return sum(array.nbytes for array in arrays(batch).values())


# -- Arrow Flight ----------------------------------------------------------------------------------


def serve_flight() -> None:
    """Serve the streams that tickets describe, until the input ends.

    Flight moves record batches and reads no TFRecords: the server reads, checks and parses them
    with streamrec in a thread, and hands the columns to Arrow without a copy.
    """
    import pyarrow.flight as fl

    class Server(fl.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002 - Flight's signature
            """Return a stream without an end."""
            arguments = json.loads(ticket.ticket)
            found = record_batches(arguments)
            if arguments["repeats"]:
                found = itertools.cycle(ready_batches(ticket.ticket))
            first = next(found)
            return fl.GeneratorStream(first.schema, itertools.chain([first], found))

    server = Server("grpc://127.0.0.1:0")
    print(json.dumps({"listen": f"grpc://127.0.0.1:{server.port}"}), flush=True)
    sys.stdin.read()
    server.shutdown()


@cache
def ready_batches(ticket: bytes) -> list[Any]:
    """Return some batches, which all clients share."""
    return list(itertools.islice(record_batches(json.loads(ticket)), KEPT))


def record_batches(arguments: dict[str, Any]) -> Iterator[Any]:
    """Yield batches as Arrow's, in the same memory, without an end."""
    import pyarrow as pa

    for batch in open_shards(arguments, engine="thread"):
        columns = batch.columns or {"records": batch.records}
        arrow = {name: _arrow(column) for name, column in columns.items()}
        yield pa.RecordBatch.from_pydict(arrow)


def _arrow(column: Any) -> Any:
    import pyarrow as pa

    from streamrec import BytesColumn

    if isinstance(column, BytesColumn):
        buffers = [None, *map(pa.py_buffer, (column.offsets, column.values))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), buffers)
    flat = pa.array(column.reshape(-1))
    return flat if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, column.shape[1])


def open_flight(arguments: dict[str, Any]) -> Iterator[Any]:
    import pyarrow.flight as fl

    with fl.connect(arguments["address"]) as client:
        reader = client.do_get(fl.Ticket(json.dumps(arguments).encode()))
        while True:
            yield reader.read_chunk().data


# -- tf.data service -------------------------------------------------------------------------------


def serve_tf() -> None:
    """Serve until the input ends.

    The server is a dispatcher and a worker in one process, as in TensorFlow's documentation for one
    machine. Nothing is compressed on the way. Clients share one job: each batch goes to one.
    """
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(json.dumps({"listen": dispatcher.target}), flush=True)
    sys.stdin.read()
    del worker


def open_tf(arguments: dict[str, Any]) -> Iterator[Any]:
    """Let the service read local files, or repeat some batches of them."""
    import tensorflow as tf

    from bench.readers.tf_data import batches, dataset

    given = {**arguments, "epochs": -1, "deterministic": True}
    found = dataset(given) if arguments["features"] else batches(given)
    if arguments["repeats"]:
        found = found.take(KEPT).cache().repeat()
    service = tf.data.experimental.service.distribute(
        processing_mode="parallel_epochs",
        service=arguments["address"],
        job_name=arguments["job"],
        compression=None,
    )
    yield from found.apply(service)


def count_tensors(batch: Any) -> int:
    return int((batch["label"] if isinstance(batch, dict) else batch).shape[0])


def tensors_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors, of strings their bytes alone."""
    arrays = [one.numpy() for one in (batch.values() if isinstance(batch, dict) else [batch])]
    return sum(
        sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays
    )


# -- the processes ---------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of clients: how one is opened, and how batches are counted."""

    open: Opener
    count: Callable[[Any], int] = len
    size: Callable[[Any], int] = nbytes
    serve: Callable[[], None] | None = None


KINDS = {
    "bare": Kind(open_bare, lambda came: came.records, lambda came: came.nbytes, serve_bare),
    "feeder": Kind(from_feeder),
    "engine": Kind(from_engine),
    "flight": Kind(
        open_flight, lambda batch: batch.num_rows, lambda batch: batch.nbytes, serve_flight
    ),
    "tf_service": Kind(open_tf, count_tensors, tensors_nbytes, serve_tf),
}


def answer_commands(kind: Kind) -> None:
    """Answer commands until the input ends."""
    host = Host(kind)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(host, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001 - another client may still be measured
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def main(name: str, serves: str = "") -> None:
    kind = KINDS[name]
    if serves and kind.serve is not None:
        kind.serve()
    else:
        answer_commands(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
