"""A simulated bucket: a loopback store whose network and limits are given as a text.

The text is such as ``"latency=50ms,link=10Gbit"``; other verbs take the quantities in it, too.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter, ValidationError

from streamrec.config.lazy_settings import validate
from streamrec.config.validation import Settings
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import ConfigError
from streamrec.flow.child_process import ChildProcess
from streamrec.formats.examples.dtypes import HELD_AS, numpy_dtype
from streamrec.formats.examples.encode import encode_examples
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import ZLIB
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    as_specs,
    feature_of,
)
from streamrec.kernel.contract import DataType
from streamrec.surroundings import absolute, temporary_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from streamrec.values.columns import BytesColumn

DEFAULT_FEATURES: Mapping[str, Any] = {
    "id": FixedLenFeature((), "int64"),
    "label": FixedLenFeature((), "int64"),
    "image": Image(),
}
"""Records of about 100 KB, as those of ImageNet."""
STRING_BYTES = 32
LONGEST = 64
"""Most items of a feature that may have any number of them; their mean is half of it."""


def sample_records(features: Mapping[str, Any], number: int) -> BytesColumn:
    """Return serialized Examples, the same ones each time.

    Args:
        features: The specs by name.
        number: The number of records.

    Raises:
        ConfigError: No values can be made for a spec.
    """
    # A fixed seed: two simulations of one text have the same bytes.
    randomness = np.random.default_rng(0)
    specs = as_specs(features)
    named = {feature_of(name, spec): spec for name, spec in specs.items()}
    return encode_examples({name: _column(name, named[name], number, randomness) for name in named})


def _column(name: str, spec: Any, number: int, randomness: np.random.Generator) -> Any:
    if isinstance(spec, Image) and spec.shape is None:
        pictures = sample_pictures()
        return [pictures[row % len(pictures)] for row in range(number)]
    if isinstance(spec, FixedLenFeature) and spec.raw:
        size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
        plain = [randomness.bytes(size) for _ in range(number)]
        return [zlib.compress(octets) for octets in plain] if spec.raw == ZLIB else plain
    if isinstance(spec, FixedLenFeature):
        return _values(spec.dtype, (number, *spec.shape), randomness)
    if isinstance(spec, VarLenFeature | FixedLenSequenceFeature) or (
        isinstance(spec, RaggedFeature) and not spec.partitions
    ):
        shape = spec.shape if isinstance(spec, FixedLenSequenceFeature) else ()
        lengths = randomness.integers(1, LONGEST + 1, number).tolist()
        return [_values(spec.dtype, (length, *shape), randomness) for length in lengths]
    raise ConfigError(
        f"feature {name!r} is {spec!r}, for which a simulation can make no values; name a local "
        "shard whose records it can repeat"
    )


def _values(dtype: str, shape: tuple[int, ...], randomness: np.random.Generator) -> Any:
    """Return values that every dtype of their kind can hold; of byte strings flat rows."""
    held = HELD_AS[dtype]
    if held is DataType.FLOAT32:
        return randomness.random(shape, np.float32)
    if held is DataType.INT64:
        # Below 100, so that int8 and uint8 hold them, too.
        return randomness.integers(0, 2 if dtype == "bool" else 100, shape)
    strings = [randomness.bytes(STRING_BYTES) for _ in range(math.prod(shape))]
    # The rows are flat, however many dimensions an example has.
    each = math.prod(shape[1:])
    if len(shape) == 1:
        return strings
    return [strings[row * each : (row + 1) * each] for row in range(shape[0])]


BUCKET = "simulation"
KEY, SECRET = "simulation", "simulation-secret"
TEMPLATE_BYTES = 8_000_000
"""Most bytes of the shard that is made and repeated, which the store holds in memory."""
STALL_AFTER = 16 << 10
"""Bytes of a body before it stalls: the first write, so that only the body is late."""


class Stall(Settings):
    """Pauses in the middle of answers."""

    probability: Annotated[float, Field(ge=0, le=1)]
    seconds: Annotated[float, Field(ge=0)]


def _stall(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    part, colon, time = value.partition(":")
    if not colon:
        raise ValueError(f"is {value!r}; write how many and how long, such as 1%:10s")
    return {"probability": parse_part(part.strip()), "seconds": parse_seconds(time.strip())}


class Simulation(Settings):
    """The network and the limits of a simulated store."""

    latency: Seconds = 0.0
    """Seconds before each answer, on average."""
    jitter: Part = 0.0
    """The standard deviation of the latency (log-normal), as a part of it."""
    bandwidth: ByteRate | None = None
    """Bytes a second of each connection."""
    link: ByteRate | None = None
    """Bytes a second of all connections together."""
    requests: Rate | None = None
    """Requests a second; those beyond are answered with 503 SlowDown."""
    listing: Seconds | None = None
    """Seconds before each page of a listing, in place of the latency."""
    stall: Annotated[Stall, BeforeValidator(_stall)] | None = None
    """The part of the reads that pause, and for how long."""
    errors: Annotated[Part, Field(le=1)] = 0.0
    """The part of the reads that are answered with 503."""
    seed: int = 0

    def faults(self) -> list[dict[str, Any]]:
        """Return the rules of faults, as the store's process reads them."""
        rules: list[dict[str, Any]] = []
        if self.stall is not None:
            effects = {"stall_after": STALL_AFTER, "stall": self.stall.seconds}
            rules.append({"ranged": True, "probability": self.stall.probability, **effects})
        if self.errors:
            # Reads alone: an error of a listing would end the benchmark before it began.
            rules.append({"ranged": True, "probability": self.errors, "status": 503})
        return rules

    def options(self) -> dict[str, Any]:
        """Return the options of the store's process, without those that are not set."""
        every = {
            "latency": self.latency,
            "jitter": self.jitter,
            "page-latency": self.listing,
            "bandwidth": self.bandwidth,
            "link": self.link,
            "request-rate": self.requests,
            "seed": self.seed,
        }
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True)
class SimulatedStore:
    """A running simulated store."""

    source: str
    """The URL of all shards."""
    storage_options: dict[str, str]
    endpoint: str
    features: Mapping[str, Any] | None
    """Specs of the records; ``None`` where they are those of a given shard."""
    shard_bytes: int
    """The size of a shard, which is about the one asked for."""


def parse_simulation(text: str) -> Simulation:
    """Return the simulation of a text such as ``"latency=50ms,stall=1%:10s,link=10Gbit"``.

    Raises:
        ConfigError: The text is not of this form, or settings are wrong.
    """
    return parse_settings(Simulation, text, where="the simulation")


@contextmanager
def simulated(
    text: str,
    shards: int,
    shard_bytes: int,
    *,
    features: Mapping[str, Any] | None = None,
    template: Path | None = None,
) -> Iterator[SimulatedStore]:
    """Run a loopback store with synthetic shards, in a process of its own.

    One shard is made and repeated, so any number of them takes the memory of that one.

    Args:
        text: The network and the limits, as :class:`Simulation` names them.
        shards: The number of shards.
        shard_bytes: The size of a shard; it is met as far as whole records allow.
        features: The specs of the records to make; ``None``: pictures of about 100 KB with labels.
        template: A local shard to repeat instead.

    Raises:
        ConfigError: The text is wrong, no records can be made for the features, or the template
            is not a file.
        StreamrecError: The store's process did not start.
    """
    simulation = parse_simulation(text)
    if template is None:
        features = DEFAULT_FEATURES if features is None else features
    with temporary_directory("a simulation") as directory:
        if template is None:
            assert features is not None
            template, copies = _make_template(directory, features, shard_bytes)
        else:
            # A template is repeated as a whole, so the size is met as near as that allows.
            copies = max(1, round(shard_bytes / _size_of(template)))
        with _store(directory, simulation, _recipe(template, shards, copies)) as child:
            endpoint = child.ready()["endpoint"]
            options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
            # A glob, so that there is a listing to measure.
            source = f"s3://{BUCKET}/shard-*"
            size = _size_of(template) * copies
            yield SimulatedStore(
                source=source,
                storage_options=options,
                endpoint=endpoint,
                features=features,
                shard_bytes=size,
            )


def _make_template(
    directory: Path, features: Mapping[str, Any], shard_bytes: int
) -> tuple[Path, int]:
    """Write a shard; return it, and how often it has to be repeated for the size asked for."""
    # Their mean tells how many are needed; sizes vary from record to record.
    few = sample_records(features, 64)
    records = max(1, round(shard_bytes / _frames_bytes(few) * len(few)))
    # The store repeats the template inside a shard, and holds it once.
    copies = math.ceil(shard_bytes / TEMPLATE_BYTES)
    path = directory / "template.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write_many(sample_records(features, max(1, round(records / copies))))
    return path, copies


def _frames_bytes(records: Any) -> int:
    return int(records.offsets[-1]) + 16 * len(records)  # a frame has 16 bytes besides the record


def _size_of(template: Path) -> int:
    try:
        return max(1, template.stat().st_size)  # of an empty one the store says so
    except OSError as error:
        raise ConfigError(
            f"{template} cannot be repeated as a shard ({error.strerror}); name a local TFRecord "
            "file"
        ) from None


def _recipe(template: Path, shards: int, copies: int) -> dict[str, Any]:
    # The name is a format of Python's in the other process.
    suffix = template.suffix.replace("{", "{{").replace("}", "}}")
    name = f"shard-{{:05}}-of-{shards:05}{suffix}"
    paths = [str(absolute(template))]
    return {BUCKET: {"templates": paths, "name": name, "objects": shards, "copies": copies}}


def _store(directory: Path, simulation: Simulation, recipes: dict[str, Any]) -> ChildProcess:
    files = {"synthetic": recipes, "faults": simulation.faults()}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    options = {name: directory / name for name in files} | simulation.options()
    options |= {"key": KEY, "secret": SECRET}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = directory / "store.log"
    return ChildProcess("store", ["streamrec.devstore", *arguments, "--warm"], log)


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_BYTES = TypeAdapter(ByteSize)


def parse_seconds(text: str) -> float:
    """Return the seconds of a time such as ``50ms``.

    Raises:
        ValueError: It is not a time, or has no unit; the message goes on from a setting's name.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*({'|'.join(_TIMES)})", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a time and its unit, such as 50ms or 2s")
    # A unit is required: 50 could be seconds or milliseconds.
    return float(match[1]) * _TIMES[match[2]]


def parse_part(text: str) -> float:
    """Return a part of 1, which is written as ``30%`` or ``0.3``.

    Raises:
        ValueError: The text is not such a part; the message goes on from a setting's name.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(%?)", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a part, such as 30% or 0.3")
    return float(match[1]) / (100 if match[2] else 1)


def _parse_rate(text: str) -> float:
    match = re.fullmatch(rf"{_NUMBER}\s*(?:/s)?", text)
    if match is None:
        raise ValueError(f"is {text!r}; write a number a second, such as 3500/s")
    return float(match[1])


def _parse_bytes(text: str) -> int:
    return _bytes(text, f"is {text!r}; write bytes and their unit, such as 128MB")


def _parse_byte_rate(text: str) -> int:
    why = f"is {text!r}; write a rate such as 60MB/s or 10Gbit"
    return _bytes(text.removesuffix("/s"), why)


def _bytes(text: str, why: str) -> int:
    # A small b stands for bits as often as for bytes.
    if not re.fullmatch(rf"{_NUMBER}\s*(?!\w+b$)\w*", text):
        raise ValueError(why)
    try:
        return int(_BYTES.validate_python(text))
    except ValidationError:
        raise ValueError(why) from None


def _reader(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that takes numbers as they are, and parses texts."""
    return BeforeValidator(lambda value: parse(value.strip()) if isinstance(value, str) else value)


Seconds = Annotated[float, _reader(parse_seconds), Field(ge=0, allow_inf_nan=False)]
Part = Annotated[float, _reader(parse_part), Field(ge=0, allow_inf_nan=False)]
"""A part of 1; it may be more than the whole."""
Rate = Annotated[float, _reader(_parse_rate), Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, _reader(_parse_bytes), Field(gt=0)]
ByteRate = Annotated[int, _reader(_parse_byte_rate), Field(gt=0)]

_Model = TypeVar("_Model", bound=Settings)


def parse_settings(model: type[_Model], text: str, *, where: str) -> _Model:
    """Build settings from a text of ``NAME=VALUE``, separated by commas.

    Args:
        model: The settings class.
        text: The text; empty: all settings have their defaults.
        where: The name of what the text describes, for errors.

    Raises:
        ConfigError: The text has another form, names a setting twice, or settings are wrong.
    """
    values: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, item.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {item!r} has no value; write it like NAME=VALUE")
        # The last one would win in silence.
        if name in values:
            raise ConfigError(f"{where}: {name!r} is there twice; leave one of them out")
        values[name] = value
    # Not strict: all values come as texts here.
    return validate(model, values, where=where, strict=False)
