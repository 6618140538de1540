"""Arrow Flight: ``python -m bench.feeding.flight serve`` or a process of clients.

Flight moves record batches and reads no TFRecords: the server reads, checks and parses them with
streamrec in a thread, and hands the columns to Arrow without a copy.
"""

from __future__ import annotations

import itertools
import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl

from bench.feeding import KEPT
from bench.feeding.host import main
from bench.feeding.streams import opened
from streamrec import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import streamrec as sr


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """A server of the streams that tickets describe."""

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002 - Flight's signature
        """Return a stream without an end."""
        arguments = json.loads(ticket.ticket)
        found = itertools.cycle(ready(ticket.ticket)) if arguments["repeats"] else read(arguments)
        first = next(found)
        return fl.GeneratorStream(first.schema, itertools.chain([first], found))


@cache
def ready(ticket: bytes) -> list[Any]:
    """Return some batches, which all clients share."""
    return list(itertools.islice(read(json.loads(ticket)), KEPT))


def read(arguments: dict[str, Any]) -> Iterator[Any]:
    """Yield batches without an end."""
    return map(record_batch, opened(arguments, engine="thread"))


def record_batch(batch: sr.Batch) -> Any:
    """Return a batch as Arrow's, in the same memory."""
    columns = batch.columns or {"records": batch.records}
    return pa.RecordBatch.from_pydict({name: _array(column) for name, column in columns.items()})


def _array(column: Any) -> Any:
    if isinstance(column, BytesColumn):
        offsets, values = map(pa.py_buffer, (column.offsets, column.values))
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(column), [None, offsets, values]
        )
    flat = pa.array(column.reshape(-1))
    return flat if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, column.shape[1])


def serve() -> None:
    """Serve until the input ends."""
    server = Server("grpc://127.0.0.1:0")
    print(json.dumps({"listen": f"grpc://127.0.0.1:{server.port}"}), flush=True)
    sys.stdin.read()
    server.shutdown()


def connected(arguments: dict[str, Any]) -> Iterator[Any]:
    """Read what a ticket asks for."""
    with fl.connect(arguments["address"]) as client:
        reader = client.do_get(fl.Ticket(json.dumps(arguments).encode()))
        while True:
            yield reader.read_chunk().data


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main({"flight": connected}, lambda batch: batch.num_rows, lambda batch: batch.nbytes)
