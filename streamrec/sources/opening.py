"""The choice of a source's kind, and its options."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.sources.memory import DEFAULT_MEMORY
from streamrec.stores.source_text import is_glob, split_chain
from streamrec.stores.stored_files import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.sources.memory import Memory
    from streamrec.sources.source import Source


class _SourceKind(NamedTuple):
    place: str
    """The module and the function that opens such a source."""
    suffixes: tuple[str, ...]
    options: frozenset[str]
    is_stored: bool = True
    """It can be read from a store."""
    is_bounded: bool = False
    """Its files tell what they take, which is compared with the memory that there is."""


_TYPES = frozenset({"bytes", "float32", "int64"})
_TABLE = frozenset({"features", "types", "drop", "key"})
"""The options of all tables."""
_BERT = frozenset(
    {
        "vocab_file",
        "do_lower_case",
        "do_whole_word_mask",
        "max_seq_length",
        "max_predictions_per_seq",
        "random_seed",
        "dupe_factor",
        "masked_lm_prob",
        "short_seq_prob",
        "min_short_seq_length",
        "use_v2_feature_names",
        "metadata_files",
        "input_files_prefix",
        "splits",
    }
)
_OPTIONS = {"types": "type"}
"""Names on the command line that are other ones."""
_ROOM = "streamrec.sources."
KINDS = {
    "csv": _SourceKind(
        "delimited:open_delimited",
        (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
        _TABLE | {"delimiter", "null"},
    ),
    "jsonl": _SourceKind(
        "json_lines:open_json_lines",
        (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"),
        _TABLE,
    ),
    "webdataset": _SourceKind(
        "webdataset:open_webdataset", (".tar", ".tar.gz", ".tgz"), _TABLE, is_bounded=True
    ),
    "mds": _SourceKind(
        "mds:open_mds",
        (".mds", ".mds.zstd", ".mds.gz", ".mds.bz2", "/index.json"),
        _TABLE,
        is_bounded=True,
    ),
    "arrayrecord": _SourceKind(
        "array_record:open_array_record", (".array_record", ".arrayrecord"), frozenset(), False
    ),
    "generator": _SourceKind(
        "generator:open_generator", (), frozenset({"key", "source_version"}), False
    ),
    "arrow": _SourceKind(
        "arrow:open_arrow", (".parquet", ".arrow", ".feather", ".pq"), _TABLE, is_bounded=True
    ),
    # No suffix: a directory of other things may have notes in .txt files.
    "bert": _SourceKind("bert:open_bert", (), _BERT),
    "pictures": _SourceKind(
        "picture_folder:open_pictures", (), frozenset({"features", "resize", "encode", "quality"})
    ),
}


def open_source(
    place: str,
    kind: str | None,
    options: Mapping[str, Any],
    load: Callable[[str, str], Callable[..., Any]],
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
) -> Source:
    """Open a source.

    Args:
        place: A path, a URL, a pattern, or ``module:function``.
        kind: One of :data:`KINDS`; ``None``: by what is there.
        options: The options that are given, by name.
        load: Imports a function by a setting's name and its own.
        storage_options: fsspec's options, for a URL.
        memory: The bounds of what is read together.

    Raises:
        ConfigError: There is no such source, or an option is not one of its kind.
    """
    kind = kind or kind_of(place, storage_options or {})
    known = KINDS[kind]
    for name in options:
        if name not in known.options:
            option = _OPTIONS.get(name, name.replace("_", "-"))
            raise ConfigError(
                f"--{option} does not go with a source of the kind {kind}; leave it out, or name "
                "the kind with --kind"
            )
    if kind == "generator":
        options = {**options, "function": load("SOURCE", place)}
    if known.is_stored:
        options = {**options, "storage_options": storage_options}
    elif "://" in place:
        raise ConfigError(
            f"{masked(place)}: a source of the kind {kind} is read from local files; copy it here, "
            "or mount its bucket"
        )
    if known.is_bounded:
        options = {**options, "memory": memory}
    module, _, function = known.place.partition(":")
    source: Source = getattr(import_module(f"{_ROOM}{module}"), function)(place, **options)
    return source


def kind_of(place: str, storage_options: Mapping[str, Any]) -> str:
    """Return the kind of a source, by its name or by what is there.

    Raises:
        ConfigError: Neither tells.
        StoreError: The store cannot be listed.
    """
    link = split_chain(place).link  # the name of an archive does not tell what is in it
    for kind, known in KINDS.items():
        if known.suffixes and link.endswith(known.suffixes):
            return kind
    if link.endswith((".json", ".json.gz")):  # in a directory they may be notes of anything
        return "jsonl"
    names = names_in(place, storage_options)
    if names is not None:
        for kind, known in KINDS.items():
            if known.suffixes and any(name.endswith(known.suffixes) for name in names):
                return kind
        return "pictures"
    if ":" in place and "://" not in place and not Path(place).exists():
        return "generator"
    raise ConfigError(f"{masked(place)}: {_why_not(place)}")


def _why_not(place: str) -> str:
    """Return why a source's kind is not known, and what to do."""
    if ".tfrecord" in place:
        return "it names TFRecord shards; streamrec reshard writes shards anew"
    if "://" not in place and not is_glob(place) and not Path(place).exists():
        return "there is no such file or directory; correct the path"
    return (
        "its name does not tell what it holds, or there is no such file; correct it, or give "
        f"--kind, one of {', '.join(KINDS)}"
    )


def parse_types(texts: Sequence[str]) -> dict[str, str]:
    """Read texts of the form ``name=type``.

    Raises:
        ConfigError: One has another form, or there is no such type.
    """
    types: dict[str, str] = {}
    for text in texts:
        name, _, dtype = text.rpartition("=")  # a column's name may hold the sign
        if not name or dtype not in _TYPES:
            raise ConfigError(
                f"--type: {text!r} must be NAME=TYPE, of the types bytes, float32 and int64, as in "
                "id=int64"
            )
        types[name] = dtype
    return types


def parse_features(text: str) -> dict[str, str | None]:
    """Read ``name,name=type``: the features to write, and types of some.

    Raises:
        ConfigError: It has another form, or there is no such type.
    """
    features: dict[str, str | None] = {}
    for part in text.split(","):
        name, has_type, dtype = (piece.strip() for piece in part.partition("="))
        if not name or (has_type and dtype not in _TYPES):
            raise ConfigError(
                f"--features: {part.strip()!r} is neither NAME nor NAME=TYPE, of the types bytes, "
                "float32 and int64; give them as in age=int64,name"
            )
        features[name] = dtype or None
    return features
