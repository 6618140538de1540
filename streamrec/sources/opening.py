"""The choice of a source's kind, and its opening."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.sources import (
    array_record,
    arrow,
    bert,
    delimited,
    generator,
    json_lines,
    mds,
    picture_folder,
    webdataset,
)
from streamrec.sources.source import DEFAULT_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamrec.plan.order.shard_names import Splits
    from streamrec.sources.source import Memory, Option, Source

KINDS = {
    kind.name: kind
    for kind in (
        delimited.KIND,
        json_lines.KIND,
        webdataset.KIND,
        mds.KIND,
        array_record.KIND,
        generator.KIND,
        arrow.KIND,
        bert.KIND,
        picture_folder.KIND,
    )
}
"""All kinds, by name. The first whose suffix a name has is its kind."""
IN_DIRECTORIES = picture_folder.KIND
"""The kind of a directory in which no name tells another."""


def options_of_kinds() -> dict[str, Option]:
    """Return the options of all kinds by name, those of pictures first."""
    kinds = [IN_DIRECTORIES, *KINDS.values()]
    return {option.name: option for option in chain.from_iterable(k.options for k in kinds)}


def open_source(
    place: str,
    kind: str | None,
    options: Mapping[str, Any],
    load: Callable[[str, str], Callable[..., Any]],
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
    splits: Splits | None = None,
) -> Source:
    """Open a source.

    Args:
        place: A path, a URL, a pattern, or ``module:function``.
        kind: One of :data:`KINDS`; ``None``: by what is there.
        options: The options that are given, by name.
        load: Imports a function by a setting's name and its own.
        storage_options: fsspec's options, for a URL.
        memory: The bounds of what is read together.
        splits: The splits that the records are divided over.

    Raises:
        ConfigError: There is no such source, or an option is not one of its kind.
    """
    chosen = KINDS[kind or kind_of(place, storage_options or {})]
    # An option that has no effect is refused, and not passed over.
    chosen.refuse_others(options, options_of_kinds().values())
    more: dict[str, Any] = {"storage_options": storage_options, "memory": memory, "splits": splits}
    if chosen.is_function:
        more["function"] = load("SOURCE", place)
    if not chosen.is_stored and "://" in place:
        raise ConfigError(
            f"{masked(place)}: a source of the kind {chosen.name} is read from local files; copy "
            "it here, or mount its bucket"
        )
    # An opening gets what its parameters name, so a kind without memory need not know of it.
    takes = {name: value for name, value in more.items() if name in chosen.parameters}
    return chosen.open(place, **options, **takes)


def kind_of(place: str, storage_options: Mapping[str, Any]) -> str:
    """Return the kind of a source, by its name or by what is there.

    Raises:
        ConfigError: Neither tells.
        StoreError: The store cannot be listed.
    """
    from streamrec.config.places import split_chain
    from streamrec.stores.stored_files import names_in

    link = split_chain(place).link  # the name of an archive does not tell what is in it
    for kind, candidate in KINDS.items():
        if candidate.has_suffix(link):
            return kind
    if link.lower().endswith((".json", ".json.gz")):  # in a directory they may be notes of anything
        return json_lines.KIND.name
    # Only now is the store asked: most names tell the kind.
    names = names_in(place, storage_options)
    if names is not None:
        return _kind_in(place, names)
    # Last: a file may have a colon in its name.
    if ":" in place and "://" not in place and not Path(place).exists():
        return generator.KIND.name
    raise ConfigError(f"{masked(place)}: {_why_not(place)}")


def _kind_in(directory: str, names: Iterable[str]) -> str:
    """Return the kind of the files in a directory.

    Raises:
        ConfigError: They are of several kinds, so some of them would be left out.
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        for kind, candidate in KINDS.items():
            if candidate.has_suffix(name):
                found.setdefault(kind, name)
    if len(found) > 1:
        several = " and ".join(f"{kind} ({name})" for kind, name in found.items())
        raise ConfigError(
            f"{masked(directory)}: it holds files of several kinds, {several}; choose one with "
            "--kind, or name its files by a pattern"
        )
    return next(iter(found), IN_DIRECTORIES.name)


def _why_not(place: str) -> str:
    """Return why a source's kind is not known, and what to do."""
    from streamrec.stores.base.source_text import is_glob

    if ".tfrecord" in place:
        return "it names TFRecord shards; streamrec reshard writes shards anew"
    if "://" not in place and not is_glob(place) and not Path(place).exists():
        return "there is no such file or directory; correct the path"
    return (
        "its name does not tell what it holds, or there is no such file; correct it, or give "
        f"--kind, one of {', '.join(KINDS)}"
    )
