"""The plain form of specs, for configuration files and the wire, and their form as Python code.

A spec is a table with ``kind`` (optional), ``dtype`` and its other arguments. The specs of Examples
are a table of such tables by name. The specs of SequenceExamples are a table of two of these, named
``context`` and ``sequence``. The two cannot be confused: every spec has a ``dtype`` or a ``kind``,
and neither of these is a table.

Narrower dtypes, named apart from the specs (the setting ``dtypes``), change the plain form.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, astuple, fields
from typing import Any, NamedTuple

from streamrec.errors import ConfigError
from streamrec.formats.examples.defaults import (
    PARTITIONS,
    Partition,
    as_plain,
    feature_name,
    from_plain,
)
from streamrec.formats.examples.dtypes import HELD_AS, dtype_name
from streamrec.formats.examples.image_spec import PIXELS, Image
from streamrec.formats.examples.specs import KINDS, FeatureSpec, FixedLenSequenceFeature, as_specs
from streamrec.kernel.contract import DataType
from streamrec.suggestions import did_you_mean


def dtype_names(dtypes: Any) -> list[str] | dict[str, str]:
    """Return the setting ``dtypes`` by the names of its dtypes.

    Args:
        dtypes: A dtype, or a list of dtypes, for all features that hold such numbers; or a mapping
            from features to dtypes. Each is a name, a NumPy type or a ``tf.DType``.

    Raises:
        ConfigError: No feature can have such a dtype, or a list has two for the same features.
    """
    if isinstance(dtypes, Mapping):
        return {name: dtype_name(dtype) for name, dtype in dtypes.items()}
    names = [dtype_name(each) for each in (dtypes if isinstance(dtypes, list) else [dtypes])]
    if len({HELD_AS[name] for name in names}) < len(names):
        raise ConfigError(
            f"dtypes is {names}, of which two are for the same features; give one for integers "
            "and one for floats, or a mapping by feature"
        )
    return names


def narrow(plain: Mapping[str, Any], dtypes: Sequence[str] | Mapping[str, str]) -> dict[str, Any]:
    """Return specs in their plain form, with other dtypes.

    Args:
        plain: Specs in their plain form.
        dtypes: Names of dtypes for all features that hold such numbers, or by feature.

    Raises:
        ConfigError: There is no such feature, or it holds something else.
    """
    # One loop for both forms: the empty name is taken off again below.
    parts = plain if is_pair(plain) else {"": plain}
    by_name = dtypes if isinstance(dtypes, Mapping) else {}
    known = {name for part in parts.values() for name in part}
    if missing := by_name.keys() - known:
        raise ConfigError(
            f"dtypes names the feature {min(missing)!r}, but the features are "
            f"{', '.join(map(repr, sorted(known)))}; correct the name"
        )
    for_all = {} if isinstance(dtypes, Mapping) else {HELD_AS[name]: name for name in dtypes}
    changed = {
        key: {name: _narrow(name, spec, by_name.get(name), for_all) for name, spec in part.items()}
        for key, part in parts.items()
    }
    return changed if is_pair(plain) else changed[""]


def _narrow(
    name: str, spec: Mapping[str, Any], own: str | None, for_all: Mapping[DataType, str]
) -> Mapping[str, Any]:
    held = None if spec.get("raw") else HELD_AS.get(spec.get("dtype", ""))
    if own is not None and (held is DataType.BYTES or held is not HELD_AS[own]):
        raise ConfigError(
            f"dtypes gives the feature {name!r} the dtype {own!r}, but it holds "
            f"{spec.get('dtype', 'pictures')}; give it a dtype of its kind, or leave it out"
        )
    dtype = own or (for_all.get(held) if held else None)
    return spec if dtype is None else {**spec, "dtype": dtype}


_KIND_OF = {kind: name for name, kind in KINDS.items()}
_PARTITION_NAMES = {kind: name for name, kind in PARTITIONS.items()}
_SHORTER = {"default_value": "default"}
"""The arguments that have a shorter name in the plain form."""
_USUAL_SHAPE = ()
"""The ``shape`` of a plain form that leaves it out."""
LENGTH = "/length"
"""The suffix of the column with the number of steps in each row of a FixedLenSequenceFeature."""


class SequenceFeatures(NamedTuple):
    """The specs of a SequenceExample."""

    context: dict[str, FeatureSpec]
    """The specs of the context's features, by name."""
    sequence: dict[str, FeatureSpec]
    """The specs of the feature lists, by name."""


def as_sequence_features(features: Any) -> SequenceFeatures:
    """Check a pair (context, sequence) of mappings from names to specs; either may be ``None``.

    Raises:
        ConfigError: The argument is not such a pair, or a spec is wrong.
    """
    if not isinstance(features, tuple | list) or len(features) != 2:
        raise ConfigError(
            "the features of SequenceExamples must be a pair (context, sequence) of mappings from "
            f"names to specs, not {features!r}"
        )
    return SequenceFeatures(*(as_specs({} if part is None else part) for part in features))


def describe(features: Any) -> dict[str, Any] | None:
    """Return the plain, JSON-able form of specs; ``None`` (raw records) stays ``None``.

    Args:
        features: A mapping from names to specs, or a pair of them for SequenceExamples.

    Raises:
        ConfigError: The features are wrong, as in
            :func:`streamrec.formats.examples.specs.as_specs`.
    """
    if features is None:
        return None
    if isinstance(features, tuple | list):
        _refuse_names(features)
        pair = as_sequence_features(features)
        _check_names(pair)
        return {"context": _tables(pair.context), "sequence": _tables(pair.sequence)}
    return _tables(as_specs(features))


def _refuse_names(features: Sequence[Any]) -> None:
    """Refuse a list of feature names, as other readers take."""
    if features and all(isinstance(name, str) for name in features):
        raise ConfigError(
            f"features is a list of names, and a name needs a spec: give a mapping, as in "
            f"{{{features[0]!r}: FixedLenFeature((), 'int64')}}, or features=\"infer\""
        )


def is_pair(plain: Any) -> bool:
    """Return whether a plain form describes SequenceExamples rather than Examples."""
    return (
        isinstance(plain, Mapping)
        and bool(plain)
        and plain.keys() <= {"context", "sequence"}
        and all(isinstance(part, Mapping) and not _is_spec(part) for part in plain.values())
    )


def _is_spec(table: Mapping[str, Any]) -> bool:
    return any(not isinstance(value, Mapping) for value in table.values())


def from_description(plain: Mapping[str, Any]) -> Any:
    """Build specs from their plain form: a dict by name, or :class:`SequenceFeatures`.

    Raises:
        ConfigError: A kind, key, dtype, shape or default is wrong; the error names the feature. Or
            two columns would have one name.
    """
    if not is_pair(plain):
        return _specs(plain)
    pair = SequenceFeatures(_specs(plain.get("context", {})), _specs(plain.get("sequence", {})))
    _check_names(pair)
    return pair


def _specs(plain: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    if not isinstance(plain, Mapping):
        raise ConfigError(f"features must be a table with one table for each, not {plain!r}")
    return {feature_name(name): _from_plain(name, spec) for name, spec in plain.items()}


def _check_names(pair: SequenceFeatures) -> None:
    """Refuse specs that would give a batch two columns of one name."""
    lengths = [
        f"{name}{LENGTH}"
        for name, spec in pair.sequence.items()
        if isinstance(spec, FixedLenSequenceFeature)
    ]
    names = [*pair.context, *pair.sequence, *lengths]
    # Sorted, so that every run names the same one.
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ConfigError(
            f"feature {twice[0]!r}: the context and the sequence both give a column of this name; "
            "leave one of them out, or rename it in the records"
        )


def _tables(specs: Mapping[str, FeatureSpec]) -> dict[str, Any]:
    return {name: _describe(spec) for name, spec in specs.items()}


def _describe(spec: FeatureSpec) -> dict[str, Any]:
    plain: dict[str, Any] = {"kind": _KIND_OF[type(spec)]}
    for name, value in _arguments(spec):
        plain[_SHORTER.get(name, name)] = _plain_argument(name, value)
    return plain


def _arguments(spec: FeatureSpec) -> Iterable[tuple[str, Any]]:
    """Yield the names and values of the spec's arguments, without those at their default."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        # Equal specs get equal forms, whether or not a default was spelt out.
        if field.default is MISSING or value != field.default:
            yield field.name, value


def _plain_argument(name: str, value: Any) -> Any:
    if name == "partitions":
        return [{_PARTITION_NAMES[type(each)]: astuple(each)[0]} for each in value]
    if name == "default_value":
        return as_plain(value)
    return list(value) if isinstance(value, tuple) else value


def _from_plain(name: str, plain: Any) -> FeatureSpec:
    if not isinstance(plain, Mapping):
        raise ConfigError(f"feature {name!r} must be a table with kind and dtype, not {plain!r}")
    kind = plain.get("kind", "fixed")
    try:
        _require("kind", kind, KINDS)
        return _build(KINDS[kind], plain)  # type: ignore[no-any-return]
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"feature {name!r}: {error}") from None


def _build(kind: Any, plain: Mapping[str, Any]) -> Any:
    keys = {_SHORTER.get(field.name, field.name): field for field in fields(kind)}
    for key in plain:
        # A kind in a key's place is a likely slip, for which a list of keys is no help.
        if key in KINDS and key not in keys:
            raise ConfigError(f'there is no key {key!r}; write kind = "{key}"')
        _require("key", key, ["kind", *keys])
    has_usual = "shape" in keys and keys["shape"].default is MISSING
    arguments: dict[str, Any] = {"shape": _USUAL_SHAPE} if has_usual else {}
    for key, field in keys.items():
        if key in plain:
            arguments[field.name] = _argument(field.name, plain[key])
        elif field.default is MISSING and key not in arguments:
            raise ConfigError(f"the key {key!r} is missing; add it")
    return kind(**arguments)


def _argument(name: str, value: Any) -> Any:
    if name == "partitions":
        return [_partition(table) for table in value] if isinstance(value, list) else value
    return from_plain(value) if name == "default_value" else value


def _partition(table: Any) -> Partition:
    if not isinstance(table, Mapping) or len(table) != 1:
        raise ConfigError(
            f'a partition must be a table such as {{ row_splits = "key" }}, not {table!r}'
        )
    ((name, value),) = table.items()
    _require("partition", name, PARTITIONS)
    return PARTITIONS[name](value)  # type: ignore[no-any-return]


def _require(what: str, word: Any, known: Iterable[str]) -> None:
    known = list(known)
    if word in known:
        return
    hint = did_you_mean(str(word), known, f"there are {', '.join(known)}")
    raise ConfigError(f"there is no {what} {word!r}; {hint}")


def as_python(features: Mapping[str, FeatureSpec]) -> str:
    """Return inferred specs as Python code, ready to paste below ``import streamrec as sr``."""
    lines = [f"    {name!r}: sr.{_code(spec)},\n" for name, spec in features.items()]
    return f"features = {{\n{''.join(lines)}}}"


def _code(spec: FeatureSpec) -> str:
    required = {field.name for field in fields(spec) if field.default is MISSING}
    arguments = [
        _python(value) if name in required else f"{name}={_python(value)}"
        for name, value in _arguments(spec)
    ]
    return f"{type(spec).__name__}({', '.join(arguments)})"


def _python(value: Any) -> str:
    if not isinstance(value, tuple) or not any(isinstance(each, Partition) for each in value):
        return repr(value)
    kind = "sr.RaggedFeature."
    parts = [f"{kind}{type(each).__name__}({astuple(each)[0]!r})" for each in value]
    return f"[{', '.join(parts)}]"


USUAL_GROWTH = 12
"""Bytes of pixels for one of a JPEG, where nothing says more: photographs have about two bits a
pixel. PNG has more."""


def has_pictures(plain: Mapping[str, Any]) -> bool:
    """Return whether a spec of features in their plain form decodes pictures."""
    return any(_pictures(plain))


def growth_of(plain: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return how much memory the pictures of a batch take.

    Args:
        plain: The features in their plain form; ``None``: the records stay as they are.

    Returns:
        Bytes a row, of pictures whose size is known; and for the others, times the bytes of the
        records: an estimate.
    """
    if plain is None:
        return 0, 1
    single, several = _pictures(plain)
    known = sum(
        math.prod(spec.size) * spec.channels * PIXELS[spec.dtype] for spec in single if spec.size
    )
    unknown = bool(several) or any(spec.size is None for spec in single)
    return known, USUAL_GROWTH if unknown else 1


def _pictures(plain: Mapping[str, Any]) -> tuple[list[Image], list[Image]]:
    """Return the specs of pictures: of those of a record, and of those of a step."""
    specs = from_description(plain)
    of_records, of_steps = (
        [spec for spec in part.values() if isinstance(spec, Image)]
        for part in (specs if isinstance(specs, tuple) else (specs, {}))
    )
    single = [spec for spec in of_records if not spec.sequence]
    return single, of_steps + [spec for spec in of_records if spec.sequence]
