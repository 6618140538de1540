"""Validation of settings: the base of their classes, and the sentences about wrong ones.

A message has one sentence for each wrong setting, which begins "the setting 'name' ": a validator's
message goes on from there, and says what is wrong and what to do.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from streamrec.errors import ConfigError
from streamrec.masking import mask_urls
from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic.fields import FieldInfo


_READS_AHEAD = "a stream reads ahead by itself; leave it out"
_ORDER = "the order follows from lanes and never from how many are read at once; leave it out"
_SOURCE = "it is the first argument, the source"
_OF_A_STORE = "it is an option of the store: storage_options={'"
_WINDOW = "give shuffle=True, and shuffle_window in bytes"

HABITS = {
    "Bucket": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "Key": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "anon": _OF_A_STORE + "anon': True}",
    "aws_access_key_id": _OF_A_STORE + "key': …}",
    "aws_secret_access_key": _OF_A_STORE + "secret': …}",
    "batch": "it is batch_size",
    "block_length": "lanes give one record in turn, and batches mix them; leave it out",
    "bs": "it is batch_size",
    "bsz": "it is batch_size",
    "bucket": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "buffer_size": _WINDOW,
    "cache_limit": "it is cache, a size or a folder",
    "chunksize": "it is batch_size",
    "collate_fn": "it is transform, a function from a batch to its columns",
    "compression_type": "it is compression",
    "cycle_length": _ORDER,
    "deterministic": "it is ordered",
    "download_retry": "retries are limited by stall_timeout alone",
    "drop_last": 'it is remainder="drop"',
    "drop_remainder": 'it is remainder="drop"',
    "endpoint_url": _OF_A_STORE + "endpoint_url': …}",
    "file_pattern": _SOURCE,
    "filenames": _SOURCE,
    "files": _SOURCE,
    "interleave": _ORDER,
    "local": "it is cache, a folder for what was read",
    "map_fn": "it is map, a function from columns to columns",
    "nrows": "call streamrec.take(stream, count)",
    "num_canonical_nodes": "it is lanes, which every world size must divide",
    "num_epochs": "it is epochs",
    "num_parallel_calls": _READS_AHEAD,
    "num_parallel_reads": _READS_AHEAD,
    "num_replicas": "it is world_size",
    "num_shards": "it is world_size, and shard_index is rank",
    "num_workers": _READS_AHEAD,
    "path": _SOURCE,
    "paths": _SOURCE,
    "persistent_workers": _READS_AHEAD,
    "pin_memory": "streamrec.adapters.torch.as_loader pins the memory, with device=",
    "predownload": "it is memory_budget, in bytes",
    "prefetch_factor": _READS_AHEAD,
    "profile_name": _OF_A_STORE + "profile': …}",
    "reader_num_threads": _READS_AHEAD,
    "region_name": _OF_A_STORE + "client_kwargs': {'region_name': …}}",
    "remote": _SOURCE,
    "repeat": "it is epochs, and None repeats for ever",
    "sampler": "it is shuffle, or the weights of streamrec.mix",
    "shard_index": "it is rank",
    "shuffle_block_size": _WINDOW,
    "shuffle_buffer": _WINDOW,
    "shuffle_buffer_size": _WINDOW,
    "shuffle_seed": "it is seed",
    "shuffle_size": _WINDOW,
    "transforms": "it is map, a function from columns to columns",
    "url": _SOURCE,
    "urls": _SOURCE,
    "worker_init_fn": _READS_AHEAD,
}
"""By name, half a sentence: what to write instead."""

METHODS = {
    "as_numpy_iterator": "a stream is an iterable, and its columns are NumPy arrays",
    "batch": "give batch_size=",
    "cache": "give cache=",
    "filter": "give filter=, a function from columns to a mask",
    "interleave": "streamrec.open reads shards side by side; give lanes=",
    "map": "give map=, a function from columns to columns",
    "padded_batch": "give batch_size=, and FixedLenSequenceFeature in features",
    "repeat": "give epochs=, where None repeats for ever",
    "shard": "give rank= and world_size=",
    "shuffle": _WINDOW,
    "skip": "call seek(step=...), with an index",
    "take": "call streamrec.take(stream, count)",
}
"""By the name of a method of ``tf.data``, half a sentence: what to write instead."""

_SECRETS = ("storage_options", "token")
"""The settings whose values errors do not show."""

_WANTED = {
    "byte_size": 'bytes, such as "1GiB"',
    "byte_size_unit": 'bytes, such as "1GiB"',
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
"""What a value should be, by pydantic's type of the fault, where its own words puzzle people."""


def _in_whole(value: object) -> object:
    """Refuse a text that has more than a number and a unit: pydantic leaves out what follows."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d*\.?\d+\s*[^\W\d]*\s*", value):
        raise PydanticCustomError("byte_size", "not a number and a unit")
    return value


Bytes = Annotated[ByteSize, BeforeValidator(_in_whole)]
"""A number of bytes, or a text such as ``"256MiB"``."""


class Settings(BaseModel):
    """The base of all settings: frozen, complete in their names, and without secrets in a repr."""

    # Defaults too: the checks of a setting against others must run where it is left out.
    # Built at the first use, as an import of the package should not wait for validators.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ((name, mask_urls(value)) for name, value in super().__repr_args__())

    @classmethod
    def table_of(cls, _location: Sequence[int | str]) -> tuple[type[Settings], int]:
        """Return the table that a location is in, and the number of parts that name a setting."""
        return cls, 1


_Model = TypeVar("_Model", bound=Settings)


def validate(
    model: type[_Model], values: dict[str, Any], *, where: str = "", strict: bool = True
) -> _Model:
    """Build a settings object from plain values.

    Args:
        model: The settings class.
        values: The values by the settings' names.
        where: The source of the values for errors, such as the configuration file's path.
        strict: Types are those of a file: a text is not a number, and 1 is not True.

    Raises:
        ConfigError: Settings are wrong; the message has one sentence for each of them.
    """
    try:
        plain = {
            name: _plain(value, model.model_fields.get(name)) for name, value in values.items()
        }
        return model.model_validate(plain, strict=strict)
    except ValidationError as error:
        faults = "; ".join(_sentences(model, error).values())
        raise ConfigError(f"{where}: {faults}" if where else faults) from None


def check_values(
    model: type[_Model], values: Mapping[str, Any]
) -> tuple[_Model | None, dict[tuple[str, ...], str]]:
    """Build a settings object from the values of a file, where a text is not taken for a number.

    Args:
        model: The settings class.
        values: The values by the settings' names, as TOML and JSON have them.

    Returns:
        The settings, ``None`` where one is wrong; and a sentence for each that is, by its path.
    """
    # JSON's strict mode knows that a file has no tuples and no objects; Python's refuses them.
    text = json.dumps(values, default=str)
    try:
        return model.model_validate_json(text, strict=True), {}
    except ValidationError as error:
        return None, _sentences(model, error)


def _plain(value: Any, field: FieldInfo | None) -> Any:
    """Return a value of Python in the form that a file would have it."""
    if isinstance(value, tuple):
        return [_plain(one, None) for one in value]
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:  # a number of NumPy
        return value.item()
    if isinstance(value, float) and value.is_integer() and "ByteSize" in repr(field):
        return int(value)  # 1e9 bytes
    return value


def byte_size(name: str, text: object) -> int:
    """Read a number of bytes, at least one, as settings write it (``"4MiB"``).

    Raises:
        ConfigError: The text is not a number of bytes; the error names ``name``.
    """
    try:
        size = TypeAdapter[int](Bytes).validate_python(text)
    except ValidationError:
        # Refused below, by the same sentence as a number below 1.
        size = ByteSize(0)
    if size < 1:
        raise ConfigError(f"{name} is {text!r} but must be a number of bytes, as in 4MiB")
    return int(size)


def _sentences(model: type[Settings], error: ValidationError) -> dict[tuple[str, ...], str]:
    """Return a sentence for each wrong setting, by its path."""
    by_setting: dict[tuple[str, ...], list[Any]] = {}
    for fault in error.errors():
        # Behind a setting's name, pydantic puts the members of a union that it tried.
        path = fault["loc"][: model.table_of(fault["loc"])[1]]
        by_setting.setdefault(tuple(map(str, path)), []).append(fault)
    return {path: _sentence(model, path, few) for path, few in by_setting.items()}


def _sentence(model: type[Settings], path: tuple[str, ...], faults: list[Any]) -> str:
    # Of a union pydantic has a fault for each member; the first has the input that all of them saw.
    name, first = ".".join(path), faults[0]
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}{_nearest(model, path)}"
    if first["type"] == "missing":
        return f"the setting {name!r} is missing; add it"
    if first["type"] == "value_error":
        error = first["ctx"]["error"]
        # A validator's message goes on from the name; that of Pack is a sentence of its own.
        return f"the setting {name!r}{': ' if isinstance(error, ConfigError) else ' '}{error}"
    expected = " or ".join(map(_say_wanted, faults))
    value = first["input"]
    text = type(value).__name__ if path[-1] in _SECRETS else repr(value)
    return f"the setting {name!r} is {text} but must be {expected}"


_LENGTH = re.compile(r"(\w+) should (?:have|match) (.*?)(?: after validation.*)?")
"""pydantic's messages on how long a value is."""


def _say_wanted(fault: Any) -> str:
    """Return what a value must be, of one type that was tried."""
    if fault["type"] in _WANTED:
        return _WANTED[fault["type"]]
    message: str = fault["msg"]
    if length := _LENGTH.fullmatch(message):
        return f"a {length[1].lower()} with {length[2]}"
    return message.removeprefix("Input should be ")


def _nearest(model: type[Settings], path: tuple[str, ...]) -> str:
    # First: the name of another library need not be near to ours.
    if path[-1] in HABITS:
        return f": {HABITS[path[-1]]}"
    return nearest(path[-1], model.table_of(path)[0].model_fields)
