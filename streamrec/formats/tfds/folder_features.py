"""The document ``features.json`` of a TFDS folder, as specs of the features in its records.

The document is ``feature.proto`` of tensorflow_datasets, written as JSON; older folders have an
object with ``type`` and ``content`` in each place, or one at the top whose content is such a proto.
Records are Examples whose features are named by the path through dicts, as in
``steps/observation/image``. ``example_serializer.py`` there says how each feature becomes a list:
sequences inside sequences are one list of all values, and their lengths stand in lists of their
own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.examples.dtypes import HELD_AS, numpy_dtype
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import ZLIB
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    RaggedFeature,
    ShapedFeature,
    VarLenFeature,
)
from streamrec.formats.tfds.dataset_info import integer_of, object_of
from streamrec.kernel.contract import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streamrec.formats.examples.specs import FeatureSpec

FEATURES = "features.json"
"""The document's name in its folder."""
LABELS = ".labels.txt"
"""The suffix of the documents with the names of classes."""
_OF_ALL = {"pythonClassName", "description", "valueRange"}
"""The keys of a feature besides its content."""
_DICT = "FeaturesDict"


class _NotReadError(Exception):
    """A feature has no spec; the message says why, and what to do."""


@dataclass(frozen=True)
class _TreePlace:
    """The place of a feature in the tree."""

    path: tuple[str, ...] = ()
    """The names of the dicts' items on the way to it."""
    lengths: tuple[int | None, ...] = ()
    """The lengths of the sequences that it is inside of; ``None``: it varies."""

    @property
    def name(self) -> str:
        """The name of its feature in the records."""
        return "/".join(self.path)

    @property
    def labels(self) -> str:
        """The name of the document with the names of its classes."""
        return "-".join(name.replace("/", ".") for name in self.path) + LABELS


@dataclass(frozen=True)
class FolderFeatures:
    """The features of a TFDS folder."""

    specs: dict[str, FeatureSpec] = field(default_factory=dict)
    """The spec of each feature that is read, by its name in the records."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reason why a feature is not read, by its name."""
    labels: dict[str, str] = field(default_factory=dict)
    """The documents with the names of classes, by the feature that holds their numbers."""

    @classmethod
    def parse(cls, data: bytes, url: str) -> FolderFeatures:
        """Parse the document.

        Args:
            data: Its bytes.
            url: Its place, for errors.

        Raises:
            MalformedIndex: It is not such a document.
        """
        features, root = cls(), object_of(data, url)
        try:
            for place, make in _leaves(root, _TreePlace()):
                features._add(place, *make)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise MalformedIndex(
                f"this is not a {FEATURES} of tensorflow_datasets ({error!r}); write the folder "
                "again, or give features",
                url=url,
            ) from None
        return features

    def check(self) -> dict[str, FeatureSpec]:
        """Return the specs of all features.

        Raises:
            ConfigError: One of them is not read.
        """
        for name, why in self.refused.items():
            raise ConfigError(
                f"feature {name!r} of the folder {why}; or give features, with specs of those that "
                "you need: `streamrec info` prints the others"
            )
        return self.specs

    def _add(self, place: _TreePlace, make: Callable[..., FeatureSpec], content: Any) -> None:
        """Add the spec of one feature, or the reason why it has none."""
        try:
            self.specs[place.name] = make(place, content)
        except _NotReadError as error:
            self.refused[place.name] = str(error)
        except ConfigError as error:
            self.refused[place.name] = f"has no spec ({error})"
        if make is _class_label or (make is _image and "label" in content):
            self.labels[place.name] = place.labels


def _leaves(feature: Mapping[str, Any], place: _TreePlace) -> Iterator[tuple[_TreePlace, Any]]:
    """Yield the place of each feature that has values, its function and its content."""
    name, content = _class_and_content(feature)
    if name == _DICT:
        for key, inner in content.items():
            yield from _leaves(inner, _TreePlace((*place.path, key), place.lengths))
    elif name in ("Sequence", "Dataset"):
        length = _side(content.get("length"))
        yield from _leaves(content["feature"], _TreePlace(place.path, (*place.lengths, length)))
    elif name == "Video":
        frames, *shape = _shape(content) or (None, None, None, 3)
        yield (
            _TreePlace(place.path, (*place.lengths, frames)),
            (_image, {**content, "shape": shape}),
        )
    elif name == "Translation":
        for language in content["languages"]:
            yield _TreePlace((*place.path, language), place.lengths), (_text, content)
    elif name == "TranslationVariableLanguages":
        for part in ("language", "translation"):
            yield _TreePlace((*place.path, part), (*place.lengths, None)), (_text, content)
    else:
        yield place, (_LEAVES.get(name, _unknown), {**content, "class": name})


def _class_and_content(feature: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of a feature's class, and what the document says of it."""
    if "type" in feature:  # the older form
        name, held = feature["type"].rpartition(".")[2], feature["content"]
        content: Any = json.loads(held) if isinstance(held, str) else held
        # Named by its class, the content is a message, as in the newer form.
        is_message = bool(feature.get("proto_cls"))
        return name, content.get("features", {}) if is_message and name == _DICT else content
    name = feature["pythonClassName"].rpartition(".")[2]
    content = next((feature[key] for key in feature if key not in _OF_ALL), {})
    if "jsonFeature" in feature:
        content = json.loads(content["json"])
    return name, content.get("features", {}) if name == _DICT else content


def _shape(content: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a shape; ``None`` for a dimension that varies."""
    given = content.get("shape") or ()
    sides = given.get("dimensions", ()) if isinstance(given, dict) else given
    return tuple(map(_side, sides))


def _side(given: Any) -> int | None:
    """Return a size; ``None``: it varies."""
    side = -1 if given is None else integer_of(given)
    return None if side < 0 else side


def _dtype(content: Mapping[str, Any]) -> Any:
    """Return the name of a dtype; ``string`` is ours, ``bytes``.

    Raises:
        _NotReadError: No Example holds it.
    """
    dtype = str(content.get("dtype", ""))
    dtype = "bytes" if dtype in ("string", "object", "str") else dtype
    if dtype not in HELD_AS:
        raise _NotReadError(f"has the dtype {dtype!r}, which is not read; leave the feature out")
    return dtype


def _class_label(place: _TreePlace, _: Any) -> FeatureSpec:
    return _values(place, (), "int64")


def _text(place: _TreePlace, content: Mapping[str, Any]) -> FeatureSpec:
    if content.get("use_encoder"):
        _refuse("holds numbers of a deprecated text encoder", 'VarLenFeature("int64")')
    return _values(place, (), "bytes", _default_of("bytes", content))


def _box(place: _TreePlace, _: Any) -> FeatureSpec:
    return _values(place, (4,), "float32")


def _tensor(place: _TreePlace, content: Mapping[str, Any]) -> FeatureSpec:
    shape, dtype = _shape(content), _dtype(content)
    encoding = str(content.get("encoding") or "none").lower()
    if encoding != "none":
        return _encoded(place, shape, dtype, encoding)
    return _values(place, shape, dtype, _default_of(dtype, content))


def _audio(place: _TreePlace, content: Mapping[str, Any]) -> FeatureSpec:
    if content.get("lazyDecode") or content.get("lazy_decode"):
        _refuse("holds encoded audio, which is not decoded", 'FixedLenFeature((), "bytes")')
    return _tensor(place, {"shape": [None], "dtype": "int64", **content})


def _image(place: _TreePlace, content: Mapping[str, Any]) -> FeatureSpec:
    shape, dtype = _shape(content) or (None, None, 3), content.get("dtype") or "uint8"
    if len(place.lengths) > 1 or len(shape) != 3 or shape[2] not in (1, 3, 4):
        held = 'VarLenFeature("bytes")' if place.lengths else 'FixedLenFeature((), "bytes")'
        whole = (*place.lengths, *shape)
        _refuse(f"holds pictures of the shape {whole}, which are not made", held)
    size: Any = shape[:2] if None not in shape else None
    is_sequence: Any = bool(place.lengths)
    return Image(size, channels=shape[2], sequence=is_sequence, dtype=dtype)


def _unknown(_: _TreePlace, content: Mapping[str, Any]) -> NoReturn:
    raise _NotReadError(
        f"is a {content['class']}, whose form is not known here; leave it out, or look with "
        "`streamrec cat` at what the records hold"
    )


_LEAVES: Mapping[str, Callable[..., FeatureSpec]] = {
    "Tensor": _tensor,
    "Scalar": _tensor,
    "ClassLabel": _class_label,
    "Text": _text,
    "BBox": _box,
    "BBoxFeature": _box,
    "Image": _image,
    "LabeledImage": _image,
    "Audio": _audio,
}
"""The function that makes a feature's spec, by the name of its class in tensorflow_datasets."""


def _refuse(what: str, as_stored: str) -> NoReturn:
    raise _NotReadError(f"{what}; give sr.{as_stored} for what the records hold")


def _values(
    place: _TreePlace, shape: tuple[Any, ...], dtype: Any, default: Any = None
) -> FeatureSpec:
    """Return the spec of values of a shape, in sequences of sequences."""
    whole: tuple[Any, ...] = (*place.lengths, *shape)
    if len(place.lengths) > 1 and None not in shape:
        partitions = [
            RaggedFeature.RowLengths(f"{place.name}/ragged_row_lengths_{level}")
            for level in range(len(place.lengths) - 1)
        ]
        values = f"{place.name}/ragged_flat_values"
        return RaggedFeature(dtype, values, [*partitions, *_uniform(shape)])
    if None not in whole:
        plain = FixedLenFeature(whole, dtype)  # refuses a shape that no record holds
        # One value for each: a spec takes as many as the shape has.
        filled = [default] * math.prod(whole) if whole and default is not None else default
        return plain if default is None else FixedLenFeature(whole, dtype, filled)
    if whole.count(None) > 1 or whole[0] is not None:
        raise _NotReadError(
            f"has values of the shape {whole}, and only the first size may vary; give "
            f"sr.VarLenFeature({dtype!r}) for the values in one row"
        )
    rest = whole[1:]
    return RaggedFeature(dtype, partitions=_uniform(rest)) if rest else VarLenFeature(dtype)


def _uniform(shape: tuple[Any, ...]) -> list[Any]:
    return [RaggedFeature.UniformRowLength(side) for side in shape]


def _encoded(place: _TreePlace, shape: tuple[Any, ...], dtype: Any, encoding: str) -> FeatureSpec:
    """Return the spec of a tensor that is one byte string of a record."""
    is_sized = shape.count(None) != 1 and not place.lengths
    raws: Mapping[str, Any] = {"bytes": True, ZLIB: ZLIB}
    if encoding not in raws or not is_sized:
        many = f" in sequences of {place.lengths}" if place.lengths else ""
        _refuse(
            f"holds tensors of the shape {shape}{many} with the encoding {encoding!r}, which are "
            "not made",
            'VarLenFeature("bytes")',
        )
    if None not in shape:
        return FixedLenFeature(shape, dtype, raw=raws[encoding])
    key = place.name
    return ShapedFeature(f"{key}/shape", dtype, f"{key}/value", raws[encoding], len(shape))


def _default_of(dtype: str, content: Mapping[str, Any]) -> Any:
    """Return the value that TFDS gives a record without an optional feature."""
    if not content.get("optional"):
        return None
    if dtype == "bytes":
        return b""
    if dtype == "bool":
        return False
    if HELD_AS[dtype] is DataType.INT64:
        return int(np.iinfo(dtype).min)
    # An Example's floats are of 32 bits, and float64's least number is infinite there.
    return -math.inf if dtype == "float64" else float(np.finfo(numpy_dtype(dtype)).min)
