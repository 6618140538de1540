"""``tf.train.Example`` and ``SequenceExample``: the message classes, and encoding of plain values.

The messages are wire-compatible with TensorFlow's and live in a descriptor pool of their own, so
both can be used in one process. Sources: tensorflow/core/example/feature.proto, example.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from streamrec import kernel
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import (
    FIRST,
    ONE,
    SECOND,
    as_feature,
    frame_bytes,
    is_message,
)
from streamrec.kernel.contract import LARGEST_MESSAGE
from streamrec.kernel.messages import MESSAGES
from streamrec.masking import type_of

__all__ = [
    "BytesList",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "encode_example",
    "encode_sequence_example",
]

BytesList: Any = MESSAGES["BytesList"]
Example: Any = MESSAGES["Example"]
Feature: Any = MESSAGES["Feature"]
FeatureList: Any = MESSAGES["FeatureList"]
FeatureLists: Any = MESSAGES["FeatureLists"]
Features: Any = MESSAGES["Features"]
FloatList: Any = MESSAGES["FloatList"]
Int64List: Any = MESSAGES["Int64List"]
SequenceExample: Any = MESSAGES["SequenceExample"]

Note: TypeAlias = Callable[[str, str | None], None]
"""A function that takes a feature's name, and the field of ``Feature`` that is set, if one is."""


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialize one ``tf.train.Example``.

    A value is one of these, or a sequence, an array of any shape, a ``BytesColumn`` or a
    ``Ragged`` of them, which is stored flat:

    - ``bytes`` and the like, ``str`` (as UTF-8): a bytes list;
    - ``bool``, ``int``, NumPy's integers: an int64 list;
    - ``float``, floats of NumPy and ``ml_dtypes``: a float list, rounded to float32; so are ints
      beside floats;
    - an ``Enum``: its value;
    - a ``Feature`` message, also TensorFlow's own: as it is.

    Tensors of other libraries are taken through ``__array__``. An empty list without a dtype gives
    a feature without a kind, which readers treat as absent. Features are written in the order of
    their names, so equal values give equal bytes.

    Args:
        features: The values by the features' names.

    Returns:
        The serialized message.

    Raises:
        WrongFeatureType: A value has no representation; the error names the feature.
    """
    data = kernel.encode_plain(features)
    return encode_noted(features, _no_note) if data is None else data


def encode_noted(features: Mapping[str, Any], note: Note) -> bytes:
    """Serialize one Example, and give the kind of each feature to a function."""

    def encode(name: str, value: Any) -> bytes:
        feature = as_feature(value)
        note(name, feature.WhichOneof("kind"))
        return bytes(feature.SerializeToString())

    entries = _entries(features, encode)
    return check_length(FIRST + frame_bytes(entries) if entries else b"")


def _no_note(_name: str, _kind: str | None) -> None:
    pass


def encode_sequence_example(
    context: Mapping[str, Any] | None, feature_lists: Mapping[str, Iterable[Any]]
) -> bytes:
    """Serialize one ``tf.train.SequenceExample``.

    Args:
        context: The features of the whole sequence, as ``encode_example`` takes them; ``None``
            means none.
        feature_lists: The steps by the lists' names: a sequence, an array ``[steps, ...]`` or a
            ``FeatureList`` message, also TensorFlow's own. A step is a value as
            ``encode_example`` takes it; steps may differ in length. A list without steps is
            written, as one that is there and empty.

    Returns:
        The serialized message; equal values give equal bytes.

    Raises:
        WrongFeatureType: A value has no representation; the error names the feature and the step.
    """
    features, lists = _entries(context or {}, _feature), _entries(feature_lists, _feature_list)
    # An empty context is left out, as protobuf does with a message that is not set.
    message = FIRST + frame_bytes(features) if features else b""
    return check_length(message + SECOND + frame_bytes(lists) if lists else message)


_REFUSED = (TypeError, ValueError, OverflowError)


def _entries(features: Mapping[str, Any], encode: Callable[[str, Any], bytes]) -> bytes:
    """Encode the entries of a map, sorted by name."""
    # By hand, since the order in which protobuf writes a map differs by its version.
    entries = []
    for key, name in sorted((name_octets(name), name) for name in features):
        try:
            value = encode(name, features[name])
        except _REFUSED as error:
            raise WrongFeatureType(f"the value cannot be encoded: {error}", feature=name) from None
        entries.append(FIRST + frame_bytes(FIRST + frame_bytes(key) + SECOND + frame_bytes(value)))
    return b"".join(entries)


def name_octets(name: Any) -> bytes:
    """Return a feature's name as UTF-8.

    Raises:
        WrongFeatureType: The name is not a ``str``, or cannot be encoded as UTF-8.
    """
    if not isinstance(name, str):
        raise WrongFeatureType(f"a feature's name must be a str, not {name!r}")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise WrongFeatureType(
            f"the name cannot be encoded: {error}; rename the feature", feature=name
        ) from None


def check_length(message: bytes) -> bytes:
    """Return a serialized message, if it is not too long for readers.

    Raises:
        WrongFeatureType: The message is longer than protobuf allows.
    """
    if len(message) > LARGEST_MESSAGE:
        raise WrongFeatureType(too_large(len(message)))
    return message


def too_large(size: int) -> str:
    """Return the error's message for a record of ``size`` bytes, which is too large."""
    return f"the record takes {size} bytes, but a message has at most {LARGEST_MESSAGE}; split it"


def _feature(_name: str, value: Any) -> bytes:
    return bytes(as_feature(value).SerializeToString())


def _feature_list(_name: str, steps: Any) -> bytes:
    return encode_steps(steps)


def encode_steps(steps: Any) -> bytes:
    """Serialize the steps of one ``FeatureList``."""
    return b"".join(FIRST + frame_bytes(feature) for feature in _each(_steps(steps)))


def _steps(value: Any) -> Iterable[Any]:
    if is_message(value, FeatureList):
        steps: Iterable[Any] = value.feature
        return steps
    if isinstance(value, (*ONE, Mapping, AbstractSet)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{type_of(value)} is not a sequence of steps; give a list of one value a step"
        )
    return value


def _each(steps: Iterable[Any]) -> Iterator[bytes]:
    for number, step in enumerate(steps):
        try:
            yield _feature("", step)
        except _REFUSED as error:
            raise ValueError(f"step {number}: {error}") from None
