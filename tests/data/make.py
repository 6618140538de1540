"""Writes the shards of this directory with TensorFlow, and what TensorFlow reads back from them.

And ``iris.csv``: scikit-learn's table of that name, with a first row of names.

Run it with TensorFlow 2.21, scikit-image, scikit-learn and Pillow: ``python -m tests.data.make``.
The same versions give the same bytes. ``expected.py`` reads the JSON files; its docstring tells
their form.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import PIL.Image
import skimage
import sklearn
import tensorflow as tf

from tests.sources.folders import picture_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
KINDS = ("bytes", "float", "int64")
INT64 = [0, 1, -1, 127, 128, 300, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
FLOAT32 = [0.0, -0.0, 0.1, 1e-45, 1.1754942e-38, 3.4028235e38, np.inf, -np.inf, np.nan]
TEXT = ["", "a", "käse", "日本語", "🙂", "a\0b", "\ufeff", "e\u0301"]


def example(**features: tuple[str, list[Any]] | None) -> bytes:
    """Serialize an Example; ``None`` gives a feature of which no list is set."""
    message = tf.train.Example()
    for name, content in features.items():
        feature = message.features.feature[name]
        if content is not None:
            values = getattr(feature, f"{content[0]}_list")
            values.SetInParent()
            values.value.extend(content[1])
    return bytes(message.SerializeToString(deterministic=True))


def kinds() -> list[bytes]:
    """All three kinds of values, their extremes, empty lists, absent features, an empty record."""
    text = [string.encode() for string in TEXT]
    full = [
        example(
            id=("int64", [i]),
            numbers=("int64", INT64[: i + 1]),
            floats=("float", FLOAT32[: i + 1]),
            strings=("bytes", text[: i + 1]),
            pair=("float", [i / 3, -i]),
        )
        for i in range(len(INT64))
    ]
    blob = bytes(range(256))
    return [
        *full,
        example(id=("int64", [11]), numbers=("int64", []), strings=("bytes", [blob])),
        example(id=("int64", [12]), floats=("float", []), strings=("bytes", []), numbers=None),
        example(id=("int64", [13])),
        b"",
    ]


def sizes() -> list[bytes]:
    """Return records of all sizes, also empty ones at both ends; none is an Example."""
    random = np.random.RandomState(7)
    lengths = [0, 1, 7, 8, 9, 0, 0, 100, 300_000, 0, 4096, 12, 0]
    return [random.bytes(length) for length in lengths]


def numbers(shard: int) -> list[bytes]:
    """Twenty small records of one of three shards; ids count on from shard to shard."""
    return [
        example(
            id=("int64", [20 * shard + i]),
            square=("float", [float(i), float(i * i)]),
            name=("bytes", [f"record {i} of shard {shard}".encode()]),
            divisors=("int64", [k for k in range(1, i + 1) if i % k == 0]),
        )
        for i in range(20)
    ]


def pictures() -> list[bytes]:
    """JPEG records: tiles of photographs that scikit-image and scikit-learn ship."""
    sources = [
        *(Path(skimage.__file__).parent / "data" / name for name in SKIMAGE),
        *(Path(sklearn.__file__).parent / "datasets/images" / name for name in SKLEARN),
    ]
    records: list[bytes] = []
    for label, source in enumerate(sources):
        for tile in tiles(PIL.Image.open(source).convert("RGB").resize((320, 240))):
            records.append(
                example(
                    id=("int64", [len(records)]),
                    image=("bytes", [jpeg(tile)]),
                    label=("int64", [label]),
                    name=("bytes", [source.stem.encode()]),
                )
            )
    return records


SKIMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg")
SKLEARN = ("china.jpg", "flower.jpg")


def tiles(picture: Any) -> Iterable[Any]:
    """Yield the picture itself, and its four quarters."""
    yield picture
    for left, top in ((0, 0), (160, 0), (0, 120), (160, 120)):
        yield picture.crop((left, top, left + 160, top + 120))


def jpeg(picture: Any) -> bytes:
    """Encode as JPEG."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


def entry(name: bytes, *features: bytes) -> bytes:
    """Write one entry of the map of features by hand."""
    return field(1, field(1, name) + b"".join(field(2, feature) for feature in features))


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def by_hand() -> dict[str, bytes]:
    """Return valid encodings that TensorFlow's own writer does not make."""
    minus_one = b"\xff" * 9 + b"\x01"
    pieces = field(1, b"\1\2") + field(1, b"\3")
    one, two = field(3, field(1, b"\x01")), field(3, field(1, b"\x02"))
    return {
        "unpacked int64": field(1, entry(b"a", field(3, b"\x08\x01\x08\xac\x02"))),
        "unpacked int64, negative": field(1, entry(b"a", field(3, b"\x08" + minus_one))),
        "packed in two pieces": field(1, entry(b"a", field(3, pieces))),
        "the last of two entries counts": field(1, entry(b"a", one) + entry(b"a", two)),
        "two messages are merged": field(1, entry(b"a", one)) + field(1, entry(b"a", two)),
        "value before name": field(1, field(1, field(2, one) + field(1, b"a"))),
        "unknown fields are skipped": b"\x78\x05" + field(1, entry(b"a", one)) + field(9, b"junk"),
        "a varint longer than it needs be": field(1, entry(b"a", field(3, field(1, b"\x81\x00")))),
    }


def fixed(dtype: str, shape: list[int] | None = None, **default: Any) -> dict[str, Any]:
    """Return a FixedLenFeature in streamrec's plain form."""
    return {"kind": "fixed", "shape": shape or [], "dtype": dtype, **default}


def varlen(dtype: str) -> dict[str, Any]:
    """Return a VarLenFeature in streamrec's plain form."""
    return {"kind": "varlen", "dtype": dtype}


def cases() -> Iterable[tuple[str, list[bytes], dict[str, Any]]]:
    """Yield a name, serialized Examples, and specs by feature name."""
    whole = kinds()
    lists = {"numbers": "int64", "floats": "float32", "strings": "bytes"}
    yield "varlen of all kinds", whole, {name: varlen(dtype) for name, dtype in lists.items()}
    yield "fixed scalars", whole[:14], {"id": fixed("int64")}
    yield "fixed with default", whole, {"id": fixed("int64", default=-5)}
    yield "fixed pair", whole[:11], {"pair": fixed("float32", [2]), "id": fixed("int64", [1])}
    yield "default pair", whole, {"pair": fixed("float32", [2], default=[0.5, -1.5])}
    yield "absent everywhere", whole, {"x": varlen("bytes"), "y": fixed("bytes", default="è")}
    yield "no records", [], {"a": varlen("int64"), "b": fixed("float32", [3, 2])}
    matrix = [
        example(
            m=("int64", list(range(i, i + 6))),
            f=("float", [i / 7] * 4),
            s=("bytes", [b"%d" % i, b"", b"x" * i, b"\xff"]),
        )
        for i in range(5)
    ]
    dense = {"m": fixed("int64", [2, 3]), "f": fixed("float32", [2, 1, 2])}
    yield "dense shapes", matrix, {**dense, "s": fixed("bytes", [2, 2])}
    strings = ["a", "b", "c", "d"]
    yield (
        "defaults in shapes",
        [b"", matrix[1]],
        {
            "m": fixed("int64", [2, 3], default=[[1, 2, 3], [4, 5, 6]]),
            "s": fixed("bytes", [2, 2], default=[strings[:2], strings[2:]]),
        },
    )
    long = [example(t=("int64", list(range(-i, 512 - i)))) for i in (0, 100, 300)]
    yield "long lists", long, {"t": fixed("int64", [512])}
    yield "long lists, varlen", [*long, b"", matrix[0]], {"t": varlen("int64")}
    for name, record in by_hand().items():
        yield name, [record], {"a": varlen("int64")}
    yield from refusals(whole)


def refusals(whole: list[bytes]) -> Iterable[tuple[str, list[bytes], dict[str, Any]]]:
    """Yield records that TensorFlow refuses to parse, and their specs."""
    empty, unset = example(a=("int64", [])), example(a=None)
    yield "refused: absent", [whole[0], b""], {"id": fixed("int64")}
    yield "refused: unset", [unset], {"a": fixed("int64")}
    yield "refused: count", whole[:3], {"numbers": fixed("int64")}
    yield "refused: empty list", [empty], {"a": fixed("int64", default=1)}
    yield "refused: kind", [whole[0]], {"id": fixed("float32")}
    yield "refused: kind, varlen", [whole[0]], {"id": varlen("bytes")}
    yield "refused: kind of an empty list", [empty], {"a": varlen("float32")}
    yield "refused: cut short", [whole[0][:-1]], {"id": fixed("int64")}
    yield "refused: no message", [b"\x0bhello"], {"id": varlen("int64")}
    yield "unset, default", [unset], {"a": fixed("int64", default=9)}
    yield "unset, varlen", [unset, empty], {"a": varlen("int64")}


def tensorflow_spec(plain: dict[str, Any]) -> Any:
    """TensorFlow's own spec for a plain one."""
    dtype = tf.as_dtype("string" if plain["dtype"] == "bytes" else plain["dtype"])
    if plain["kind"] == "varlen":
        return tf.io.VarLenFeature(dtype)
    return tf.io.FixedLenFeature(plain["shape"], dtype, plain.get("default"))


def parsed(records: list[bytes], specs: dict[str, Any]) -> Any:
    """Return the result of ``tf.io.parse_example``, or the name of its error."""
    serialized = tf.constant(records, tf.string, [len(records)])
    try:
        columns = tf.io.parse_example(
            serialized, {name: tensorflow_spec(spec) for name, spec in specs.items()}
        )
    except tf.errors.InvalidArgumentError:
        return "InvalidArgumentError"
    return {name: column(value, len(records)) for name, value in columns.items()}


def column(value: Any, rows: int) -> dict[str, Any]:
    """Return a parsed column as JSON-able data."""
    if not isinstance(value, tf.SparseTensor):
        return {"shape": list(value.shape), "values": plain_values(value)}
    lengths = np.bincount(value.indices.numpy()[:, 0], minlength=rows)
    return {"row_lengths": lengths.tolist(), "values": plain_values(value.values)}


def plain_values(tensor: Any) -> list[Any]:
    """Return the values, flat: ints, floats in hexadecimal, strings in base64."""
    values = tensor.numpy().ravel().tolist()
    if tensor.dtype == tf.string:
        return [plain_string(value) for value in values]
    return [value.hex() for value in values] if tensor.dtype == tf.float32 else values


def plain_string(value: bytes) -> str:
    """Return a string in base64, or the digest of a picture."""
    if len(value) > 1000:
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    return base64.b64encode(value).decode()


def read_back(path: Path, *, content: bool) -> list[dict[str, Any]]:
    """Each record of a shard as ``tf.data.TFRecordDataset`` reads it."""
    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [describe(record, content) for record in records]


def describe(record: bytes, content: bool) -> dict[str, Any]:
    """Return a record's size and digest, and the features that TensorFlow's message class finds."""
    plain = {"length": len(record), "sha256": hashlib.sha256(record).hexdigest()}
    if not content:
        return plain
    features = tf.train.Example.FromString(record).features.feature
    return {**plain, "features": {name: plain_feature(features[name]) for name in sorted(features)}}


def plain_feature(feature: Any) -> Any:
    """Return the kind and the values of a feature, or ``None`` where no list is set."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    dtype = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}[kind]
    values = getattr(feature, kind).value
    return {kind: plain_values(tf.constant(list(values), dtype))}


def iris() -> str:
    """Return the measurements of 150 flowers, with the numbers and names of their species."""
    path = Path(sklearn.__file__).parent / "datasets" / "data" / "iris.csv"
    (_, _, *species), *rows = (line.split(",") for line in path.read_text().splitlines())
    names = ["sepal_length", "sepal_width", "petal_length", "petal_width", "label", "species"]
    table = [names, *([*row, species[int(row[-1])]] for row in rows)]
    return "".join(f"{','.join(row)}\n" for row in table)


def flowers() -> list[bytes]:
    """Return an Example for each row of ``iris.csv``."""
    records = []
    for row in csv.DictReader(iris().splitlines()):
        name, label = row.pop("species").encode(), int(row.pop("label"))
        sizes = {name: ("float", [float(text)]) for name, text in row.items()}
        records.append(example(species=("bytes", [name]), label=("int64", [label]), **sizes))
    return records


def photographs(directory: Path) -> list[bytes]:
    """Return an Example for each picture of a directory of classes."""
    records = []
    labels = sorted(path.name for path in directory.iterdir())
    for path in sorted(directory.glob("*/*")):
        data = path.read_bytes()
        height, width, channels = tf.io.decode_jpeg(data).shape
        features: dict[str, tuple[str, list[Any]]] = {
            "image/encoded": ("bytes", [data]),
            "image/format": ("bytes", [b"jpeg"]),
            "image/height": ("int64", [height]),
            "image/width": ("int64", [width]),
            "image/channels": ("int64", [channels]),
            "image/filename": ("bytes", [f"{path.parent.name}/{path.name}".encode()]),
            "image/class/label": ("int64", [labels.index(path.parent.name)]),
            "image/class/text": ("bytes", [path.parent.name.encode()]),
        }
        records.append(example(**features))
    return records


def samples(directory: Path) -> list[bytes]:
    """Return an Example for each picture of a directory of classes, as samples of WebDataset."""
    records = []
    labels = sorted(path.name for path in directory.iterdir())
    for path in sorted(directory.glob("*/*")):
        features: dict[str, tuple[str, list[Any]]] = {
            "__key__": ("bytes", [f"{path.parent.name}/{path.stem}".encode()]),
            "cls": ("int64", [labels.index(path.parent.name)]),
            "jpg": ("bytes", [path.read_bytes()]),
        }
        records.append(example(**features))
    return records


def written() -> dict[str, str]:
    """Return the digests of shards that TensorFlow writes of a table and of pictures."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        folder = picture_folder(directory / "p")
        datasets = {
            "flowers": flowers(),
            "pictures": photographs(folder),
            "pictures.tar": samples(folder),
        }
        for kind, records in datasets.items():
            with tf.io.TFRecordWriter(str(directory / kind)) as writer:
                for record in records:
                    writer.write(record)
        return {
            kind: hashlib.sha256((directory / kind).read_bytes()).hexdigest() for kind in datasets
        }


def write_json(name: str, content: dict[str, Any]) -> None:
    """Write one line for each entry, so that a change shows in a diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Write everything."""
    (HERE / "iris.csv").write_text(iris())
    shards = {"kinds.tfrecord": kinds(), "sizes.tfrecord": sizes(), "empty.tfrecord": []}
    shards |= {f"numbers-{i:05}-of-00003.tfrecord": numbers(i) for i in range(3)}
    shards["pictures.tfrecord"] = pictures()
    expected = {}
    for name, records in shards.items():
        with tf.io.TFRecordWriter(str(HERE / name)) as writer:
            for record in records:
                writer.write(record)
        readable = not name.startswith("sizes")
        expected[name] = read_back(HERE / name, content=readable)
    write_json("shards.json", expected)
    examples = {
        name: {
            "records": [base64.b64encode(record).decode() for record in records],
            "features": specs,
            "columns": parsed(records, specs),
        }
        for name, records, specs in cases()
    }
    write_json("examples.json", examples)
    write_json("written.json", written())


if __name__ == "__main__":
    main()
