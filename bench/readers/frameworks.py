"""Reads a dataset in the form of each framework: by the adapters, or by peers.

A way is a function that returns the batches. What it imports, and what starts with the first use of
a framework, is done by :func:`prepare`, before the time begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from bench.stopwatch import Arguments, Stopwatch, main

TOGETHER = 64
"""Records that the collator of Hugging Face's reader is given, as the Trainer gives a batch's."""
LISTS = {"float32": "float_list", "int64": "int64_list"}


def open_stream(arguments: Arguments) -> Any:
    from bench.readers.streams import open_stream

    return open_stream(arguments)


def adapter(name: str) -> Any:
    return import_module(f"streamrec.adapters.{name}")


def count_labels(batch: Any) -> tuple[int, int]:
    """Return the number of a batch's records, and the sum of their labels."""
    labels = batch["label"]
    return len(labels), int(labels.sum())


def count_with_numpy(batch: Any) -> tuple[int, int]:
    """Count the labels, or the targets, with NumPy, which sees them without a copy."""
    labels = np.asarray(batch[1] if isinstance(batch, tuple | list) else batch["label"])
    return len(labels), int(labels.sum())


# -- PyTorch ---------------------------------------------------------------------------------------


def start_torch() -> None:
    torch: Any = import_module("torch")
    torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))  # imports more


def loader_of(batches: Any, **options: Any) -> Any:
    data: Any = import_module("torch.utils.data")
    return data.DataLoader(batches, batch_size=None, **options)


def as_loader(arguments: Arguments) -> Any:
    return adapter("torch").as_loader(open_stream(arguments))


def in_worker(arguments: Arguments) -> Any:
    """Read with the adapter in a DataLoader's worker."""
    return loader_of(as_loader(arguments), num_workers=1)


# -- JAX, Keras ------------------------------------------------------------------------------------


def start_jax() -> None:
    import_module("jax").device_put(np.zeros(1)).block_until_ready()


def as_arrays(arguments: Arguments) -> Any:
    jax: Any = import_module("jax")
    place = import_module("jax.sharding").SingleDeviceSharding(jax.devices()[0])
    return adapter("jax").as_arrays(open_stream(arguments), place)


def start_keras() -> None:
    import_module("keras").ops.convert_to_tensor(0)


def keras_dataset(arguments: Arguments) -> Any:
    """Return the adapter's dataset of all features, the label being the target."""
    inputs = [name for name in arguments["features"] if name != "label"]
    return adapter("keras").as_dataset(open_stream(arguments), inputs, "label")


# -- TensorFlow ------------------------------------------------------------------------------------


def start_tensorflow() -> None:
    import_module("tensorflow").constant(0) + 1


def as_tf_dataset(arguments: Arguments) -> Any:
    """Read with the adapter, which reads the first batch to make the dataset."""
    return adapter("tensorflow").as_dataset(open_stream(arguments))


# -- Hugging Face ----------------------------------------------------------------------------------


def as_records(arguments: Arguments) -> Iterator[Any]:
    """Read with the adapter for Hugging Face, and collate with its own collator."""
    huggingface, records = adapter("huggingface"), []
    for record in huggingface.as_dataset(open_stream(arguments)):
        records.append(record)
        if len(records) == TOGETHER:
            yield huggingface.collate(records)
            records = []
    if records:
        yield huggingface.collate(records)


def count_records(item: Any) -> tuple[int, int]:
    """Count the labels of a batch, or the one of a record."""
    label = item["label"]
    return (1, int(label)) if np.ndim(label) == 0 else (len(label), int(label.sum()))


# -- peers, without streamrec's streams ------------------------------------------------------------


def torch_tf_data(arguments: Arguments) -> Any:
    """Return tf.data in a DataLoader, without workers: tf.data has threads of its own."""
    dataset = import_module("bench.readers.tf_data").dataset(arguments)
    data: Any = import_module("torch.utils.data")

    class Records(data.IterableDataset):  # type: ignore[misc]
        """tf.data's batches as NumPy arrays, of which a DataLoader makes tensors."""

        def __iter__(self) -> Iterator[Any]:
            return iter(dataset.as_numpy_iterator())

    return loader_of(Records())


def grain_dataset(arguments: Arguments) -> Any:
    """Return Grain's batches, whose records are parsed one by one with protobuf.

    This is how its documentation reads formats without random access: an iterator for each file,
    which are interleaved, in this process or divided between workers. Grain checks no CRC.
    """
    grain: Any = import_module("grain")
    files = grain.MapDataset.source(arguments["paths"]).map(grain.experimental.TFRecordIterDataset)
    records = grain.experimental.InterleaveIterDataset(files, cycle_length=len(files))
    parsed = records.map(partial(parse_record, arguments["features"]))
    batches = parsed.batch(arguments["batch_size"], drop_remainder=False, batch_fn=stack)
    workers = arguments["workers"]
    if not workers:
        return batches
    # Without it its workers cannot begin: Grain has options of its own.
    import_module("absl.flags").FLAGS.mark_as_parsed()
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def parse_record(features: dict[str, Any], serialized: bytes) -> dict[str, Any]:
    """Return a record's features, in the plain form of :mod:`bench.datasets`, as arrays."""
    from streamrec import Example

    found = Example.FromString(serialized).features.feature
    return {
        name: np.array(getattr(found[name], LISTS[plain["dtype"]]).value, plain["dtype"]).reshape(
            plain["shape"]
        )
        for name, plain in features.items()
    }


def stack(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return records as a batch."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


# -- the programs ----------------------------------------------------------------------------------


class Framework(NamedTuple):
    """The ways to read with a framework.

    Args:
        ways: Functions that return the batches, by name.
        tally: Returns the number of a batch's records and the sum of their labels.
        start: The framework's own start.
        modules: Modules that are imported before the time begins.
    """

    ways: dict[str, Callable[[Arguments], Iterable[Any]]]
    tally: Callable[[Any], tuple[int, int]] = count_labels
    start: Callable[[], None] = start_torch
    modules: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Import and start all that the ways need."""
        for module in self.modules:
            import_module(module)
        self.start()
        if any(name.startswith("streamrec.adapters") for name in self.modules):
            import_module("bench.readers.streams").import_all()

    def read(self, arguments: Arguments) -> dict[str, Any]:
        """Time the way that the arguments name."""
        self.prepare()
        way = arguments["way"]
        watch = Stopwatch(arguments["companions"])
        watch.start()
        # The batches are kept: a loader's workers run at the stop.
        batches = self.ways[way](arguments)
        for batch in batches:
            watch.take(*self.tally(batch))
        watch.stop()
        return watch.report()


FRAMEWORKS = {
    "torch": Framework(
        {"stream": open_stream, "as_loader": as_loader, "in_worker": in_worker},
        modules=("streamrec.adapters.torch", "torch.utils.data"),
    ),
    "jax": Framework(
        {"stream": open_stream, "as_arrays": as_arrays},
        count_with_numpy,
        start_jax,
        ("streamrec.adapters.jax", "jax.sharding"),
    ),
    "keras": Framework(
        {  # what ``fit`` asks for, by backend
            "jax": lambda arguments: keras_dataset(arguments).get_jax_iterator(),
            "tensorflow": lambda arguments: keras_dataset(arguments).get_tf_dataset(),
            "torch": lambda arguments: keras_dataset(arguments).get_torch_dataloader(),
        },
        count_with_numpy,
        start_keras,
        ("streamrec.adapters.keras",),
    ),
    "tensorflow": Framework(
        {"stream": open_stream, "as_dataset": as_tf_dataset},
        count_with_numpy,
        start_tensorflow,
        ("streamrec.adapters.tensorflow",),
    ),
    "huggingface": Framework(
        {"stream": open_stream, "as_dataset": as_records},
        tally=count_records,
        modules=("streamrec.adapters.huggingface", "torch"),
    ),
    "torch_tf_data": Framework(
        {"torch_tf_data": torch_tf_data},
        start=start_tensorflow,
        modules=("bench.readers.tf_data", "torch.utils.data"),
    ),
    "grain": Framework(
        {"grain": grain_dataset}, start=lambda: None, modules=("grain", "absl.flags", "streamrec")
    ),
}


if __name__ == "__main__":
    main({name: framework.read for name, framework in FRAMEWORKS.items()})
