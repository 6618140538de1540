"""tf.data service: ``python -m bench.feeding.tf_service serve`` or a process of clients.

The server is a dispatcher and a worker in one process, as in TensorFlow's documentation for one
machine. Nothing is compressed on the way. Clients share one job: each batch goes to one of them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from bench.feeding import KEPT
from bench.feeding.host import main
from bench.readers.tf_data import batches, dataset

if TYPE_CHECKING:
    from collections.abc import Iterator


def serve() -> None:
    """Serve until the input ends."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(json.dumps({"listen": dispatcher.target}), flush=True)
    sys.stdin.read()
    del worker


def connected(arguments: dict[str, Any]) -> Iterator[Any]:
    """Let the service read local files, or repeat some batches of them."""
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


def count(batch: Any) -> int:
    """Return the number of records."""
    return int((batch["label"] if isinstance(batch, dict) else batch).shape[0])


def nbytes(batch: Any) -> int:
    """Return the bytes of all tensors, of strings their bytes alone."""
    tensors = batch.values() if isinstance(batch, dict) else [batch]
    return sum(map(_nbytes, tensors))


def _nbytes(tensor: Any) -> int:
    if tensor.dtype == tf.string:
        return sum(map(len, tensor.numpy()))
    return int(tensor.numpy().nbytes)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main({"tf_service": connected}, count, nbytes)
