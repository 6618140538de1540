"""Feed training jobs from TFRecord shards in object storage.

::

    import streamrec as sr

    features = {"image": sr.FixedLenFeature((), bytes), "label": sr.FixedLenFeature((), "int64")}
    with sr.open("s3://bucket/train-*.tfrecord", features, batch_size=256, shuffle=True) as stream:
        for batch in stream:
            train(batch["image"], batch["label"])

Names are loaded when they are first used, so that importing the package is fast.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrec import errors
from streamrec.version import __version__ as __version__

if TYPE_CHECKING:
    from streamrec.adapters.meshes import rank_of as rank_of
    from streamrec.config import Balance as Balance
    from streamrec.config import Pack as Pack
    from streamrec.config import Window as Window
    from streamrec.config.places import escape as escape
    from streamrec.datasets.dataset_manifest import labels as labels
    from streamrec.datasets.merge_shards import merge_index as merge_index
    from streamrec.datasets.sharded_writer import ShardedWriter as ShardedWriter
    from streamrec.datasets.writer import TFRecordWriter as TFRecordWriter
    from streamrec.errors import *  # noqa: F403 - all of them
    from streamrec.feeder.engine.engine import start_engine as start_engine
    from streamrec.formats.examples.encode import encode_examples as encode_examples
    from streamrec.formats.examples.encode import (
        encode_sequence_examples as encode_sequence_examples,
    )
    from streamrec.formats.examples.example import *  # noqa: F403 - all of them
    from streamrec.formats.examples.features import parse_example as parse_example
    from streamrec.formats.examples.features import parse_sequence_example as parse_sequence_example
    from streamrec.formats.examples.features import parse_single_example as parse_single_example
    from streamrec.formats.examples.features import (
        parse_single_sequence_example as parse_single_sequence_example,
    )
    from streamrec.formats.examples.image_spec import Image as Image
    from streamrec.formats.examples.specs import FixedLenFeature as FixedLenFeature
    from streamrec.formats.examples.specs import FixedLenSequenceFeature as FixedLenSequenceFeature
    from streamrec.formats.examples.specs import RaggedFeature as RaggedFeature
    from streamrec.formats.examples.specs import ShapedFeature as ShapedFeature
    from streamrec.formats.examples.specs import SparseFeature as SparseFeature
    from streamrec.formats.examples.specs import VarLenFeature as VarLenFeature
    from streamrec.formats.images.image import decode_and_crop_jpeg as decode_and_crop_jpeg
    from streamrec.formats.images.image import decode_image as decode_image
    from streamrec.formats.images.image import decode_jpeg as decode_jpeg
    from streamrec.formats.images.image import decode_png as decode_png
    from streamrec.formats.images.image import encode_jpeg as encode_jpeg
    from streamrec.formats.images.image import encode_png as encode_png
    from streamrec.formats.tensor import parse_tensor as parse_tensor
    from streamrec.formats.tensor import serialize_tensor as serialize_tensor
    from streamrec.formats.tensor_types import decode_raw as decode_raw
    from streamrec.pipeline.batch.batch import Batch as Batch
    from streamrec.streams.opening import connect as connect
    from streamrec.streams.opening import mix as mix
    from streamrec.streams.opening import open as open  # noqa: A004 - the public name
    from streamrec.streams.sources import TFDSInfo as TFDSInfo
    from streamrec.streams.sources import infer_features as infer_features
    from streamrec.streams.sources import read_records as read_records
    from streamrec.streams.sources import shards as shards
    from streamrec.streams.sources import tfds_info as tfds_info
    from streamrec.streams.stream import Stream as Stream
    from streamrec.streams.stream import take as take
    from streamrec.streams.which import which as which
    from streamrec.values.columns import Arrays as Arrays
    from streamrec.values.columns import BytesColumn as BytesColumn
    from streamrec.values.columns import Ragged as Ragged
    from streamrec.values.columns import Sparse as Sparse

_NAMES = {
    "streamrec.adapters.meshes": "rank_of",
    "streamrec.config": "Balance Pack Window",
    "streamrec.config.places": "escape",
    "streamrec.errors": " ".join(errors.__all__),
    "streamrec.feeder.engine.engine": "start_engine",
    "streamrec.formats.examples.encode": "encode_examples encode_sequence_examples",
    "streamrec.formats.examples.example": (
        "BytesList Example Feature FeatureList FeatureLists Features FloatList Int64List "
        "SequenceExample encode_example encode_sequence_example"
    ),
    "streamrec.formats.examples.features": (
        "parse_example parse_sequence_example parse_single_example parse_single_sequence_example"
    ),
    "streamrec.formats.examples.image_spec": "Image",
    "streamrec.formats.examples.specs": (
        "FixedLenFeature FixedLenSequenceFeature RaggedFeature ShapedFeature SparseFeature "
        "VarLenFeature"
    ),
    "streamrec.formats.images.image": (
        "decode_and_crop_jpeg decode_image decode_jpeg decode_png encode_jpeg encode_png"
    ),
    "streamrec.formats.tensor_types": "decode_raw",
    "streamrec.formats.tensor": "parse_tensor serialize_tensor",
    "streamrec.datasets.dataset_manifest": "labels",
    "streamrec.datasets.merge_shards": "merge_index",
    "streamrec.datasets.sharded_writer": "ShardedWriter",
    "streamrec.datasets.writer": "TFRecordWriter",
    "streamrec.streams.opening": "connect mix open",
    "streamrec.streams.sources": "TFDSInfo infer_features read_records shards tfds_info",
    "streamrec.streams.stream": "Stream take",
    "streamrec.streams.which": "which",
    "streamrec.pipeline.batch.batch": "Batch",
    "streamrec.values.columns": "Arrays BytesColumn Ragged Sparse",
}
"""The public names of each module."""
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [  # noqa: PLE0604 - one list of names; a test holds it against the type checker's
    "__version__",
    *_HOME_OF,
]


_ROOMS = ("adapters", "kernel")
"""The modules that users name."""
_ELSEWHERE = {
    "DataLoader": "streamrec.adapters.torch.as_loader(stream) gives PyTorch what a DataLoader does",
    "Dataset": "streamrec.open(source, features, batch_size=...) opens shards",
    "IterableDataset": "streamrec.adapters.torch.as_loader(stream) gives PyTorch tensors",
    "StreamingDataset": "streamrec.open(source, features, batch_size=...) opens shards",
    "TFRecordDataset": "streamrec.open(source, features, batch_size=...) opens shards",
    "TFRecordReader": "streamrec.read_records(url) gives the records of one shard",
    "WebDataset": "streamrec.open(source, features, batch_size=...) opens shards",
    "load": "streamrec.open(source, features, batch_size=...) opens shards",
    "load_dataset": "streamrec.open(source, features, batch_size=...) opens shards",
    "read": "streamrec.open(source, features, batch_size=...) opens shards",
    "read_tfrecord": "streamrec.read_records(url) gives the records of one shard",
    "tf_record_iterator": "streamrec.read_records(url) gives the records of one shard",
    "tfrecord_loader": "streamrec.open(source, features, batch_size=...) opens shards",
    "write": "streamrec.ShardedWriter and streamrec.TFRecordWriter write",
}
"""Names of other libraries, and what stands for each here."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return _imported(f"streamrec.{name}")
    if name not in _HOME_OF:
        hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module 'streamrec' has no attribute {name!r}{hint}")
    value = getattr(_imported(_HOME_OF[name]), name)
    globals()[name] = value
    return value


_uncollected: set[str] = set()
"""The modules for whose import the garbage collector waits."""


def _imported(module: str) -> Any:
    """Import a module, and have the garbage collector wait meanwhile.

    What is imported stays for as long as the process lives. To look through it for garbage, again
    and again while there is more of it, took a tenth of the time.
    """
    was_enabled = gc.isenabled()
    if was_enabled:
        _uncollected.add(module)
        gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()
            _uncollected.discard(module)


def _collect_in_child() -> None:
    # The thread that would enable the collector again is not in the child.
    if _uncollected:
        _uncollected.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collect_in_child)


def __dir__() -> list[str]:
    return sorted(__all__)
