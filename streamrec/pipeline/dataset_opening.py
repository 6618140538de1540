"""The opening of a dataset: its shards are found, its index read, its features inferred."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from streamrec.config.machine import fetch_process_count, record_limit
from streamrec.config.places import command_for, unescape
from streamrec.errors import ConfigError, ObjectNotFound, StaleIndex
from streamrec.formats.examples.descriptions import describe, dtype_names, narrow
from streamrec.formats.examples.features import as_stored, infer_features
from streamrec.formats.examples.renaming import check_inferred, rename_specs, unread
from streamrec.formats.shards.index import LARGEST, Index
from streamrec.formats.shards.index_names import LENGTHS, SUFFIX, index_places
from streamrec.masking import masked
from streamrec.pipeline.fetch.range_queue import check_version
from streamrec.pipeline.sample import FirstRecords, sample_records
from streamrec.pipeline.tfds_folder import Listed, read_features, read_info, split_shards
from streamrec.stores.base.protocol import in_thread, read_range
from streamrec.stores.base.source_text import names_alone, names_apart, with_one_name
from streamrec.stores.open import Stores, can_fetch_apart, import_stores, limit_time, read_beside
from streamrec.values.record_rows import RecordLengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.pipeline.terms.exclusions import Exclusions
    from streamrec.stores.base.protocol import BeforeRequest, ObjectInfo
    from streamrec.stores.processes.fetch_processes import FetchProcesses

log = logging.getLogger("streamrec.pipeline")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The facts found when a dataset was opened."""

    settings: DatasetSettings
    """The settings, with what the index and the records say."""
    stores: Stores
    """The stores of the shards, which are open."""
    objects: Sequence[ObjectInfo]
    """The shards in their order; in a mix, one component after the other."""
    index: Index | None
    """The entries of these shards in the index; ``None``: the settings name none."""
    listed: Sequence[Listed]
    """The shards of each component of a mix; else of the only source."""
    is_inferred: bool
    """True if the features follow from some of the records."""
    excluded: Exclusions | None
    """The records that are never delivered; ``None``: the settings name no list."""
    lengths: RecordLengths | None
    """The lengths of all records, for ``balance``; ``None``: no rows are dealt."""


async def find(
    settings: DatasetSettings, objects: Sequence[ObjectInfo] | None, before_request: BeforeRequest
) -> Findings:
    """Find all that a dataset is made of; arguments and errors as of :meth:`.dataset.Dataset.open`.

    The stores are left open, for who makes the dataset.
    """
    make = partial(
        Stores,
        settings.storage_options,
        stall_timeout=settings.stall_timeout,
        processes=_fetch_processes(settings),
    )
    # In a thread, since a cache looks for its folder.
    stores = await in_thread(partial(make, cache=settings.cache, before_request=before_request))
    try:
        return await _find_in(stores, settings, objects)
    except BaseException:
        await stores.aclose()
        raise


def _fetch_processes(settings: DatasetSettings) -> FetchProcesses | None:
    """Make the fetch processes that the settings ask for; they start with the first run."""
    urls = [url for url in settings.urls if can_fetch_apart(url)]
    number = fetch_process_count(settings) if urls else 0
    if not number:
        return None
    from streamrec.stores.processes.fetch_processes import FetchProcesses  # few streams need them

    return FetchProcesses(number, settings.storage_options or {}, urls)


async def _find_in(
    stores: Stores, settings: DatasetSettings, objects: Sequence[ObjectInfo] | None
) -> Findings:
    # Before anything asks for a store: some take half a second to import, which belongs in a
    # thread.
    await import_stores(settings.urls)
    listed = [Listed(objects)] if objects is not None else None
    if settings.split is not None:
        # The shards that a caller has listed do not say which of their records are read.
        listed, settings = await _open_folders(stores, settings, settings.split)
    parts = listed or [Listed(part) for part in await _list_parts(stores, settings)]
    objects = [info for part in parts for info in part.objects]
    index = None
    if settings.index is not None:
        # The shards of each component of a mix have an index of their own beside them.
        owns = zip(_of_components(settings), parts, strict=True)
        found = [await _index_of(own, settings.index, stores, part) for own, part in owns]
        index = found[0] if len(found) == 1 else Index([e for one in found for e in one.entries])
        settings = apply_index(settings, index)
    is_inferred = settings.features == "infer"
    if is_inferred:
        counts = [len(part.objects) for part in parts]
        settings = await with_inferred_features(settings, stores, objects, counts)
    for old, new in unread(settings.features, settings.renames):
        log.warning("rename gives %r the name %r, which features does not read", old, new)
    if settings.dtypes and isinstance(settings.features, dict):
        features = narrow(settings.features, dtype_names(settings.dtypes))
        settings = settings.model_copy(update={"features": features})
    stores.indexes.clear()  # each may have a GB
    return Findings(
        settings=settings,
        stores=stores,
        objects=objects,
        index=index,
        listed=parts,
        is_inferred=is_inferred,
        excluded=await _read_excluded(settings, stores, objects, index, parts),
        lengths=await _read_lengths(settings, stores, objects, index),
    )


async def _read_lengths(
    settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo], index: Index | None
) -> RecordLengths | None:
    """Read the index of the lengths by which rows are dealt."""
    if settings.balance is None or index is None:
        return None
    # Few streams need these.
    from streamrec.formats.shards.length_index import LengthIndex
    from streamrec.pipeline.excluded_keys import read_companion

    urls, feature = [info.url for info in objects], settings.balance.feature
    data, url = await read_companion(settings, stores, urls, feature, LENGTHS)
    entries = index.entries
    again = command_for("index", vars(settings), "--lengths", feature)

    def find_shards() -> RecordLengths:
        found, parts = LengthIndex.parse(data, url=url), []
        for entry, shard_url in zip(entries, urls, strict=True):
            own = found.of_shard(entry) if found.feature == feature else None
            if own is None:
                raise StaleIndex(
                    f"the index of the lengths of {feature!r} does not describe this shard as the "
                    f"index of the dataset does; write both again with {again}",
                    url=shard_url,
                )
            parts.append(own)
        return RecordLengths.joined(parts)

    return await in_thread(find_shards)


async def _read_excluded(
    settings: DatasetSettings,
    stores: Stores,
    objects: Sequence[ObjectInfo],
    index: Index | None,
    parts: Sequence[Listed],
) -> Exclusions | None:
    """Read what names the records that are never delivered, and find their shards."""
    listed = settings.exclude
    if listed is None:
        return None
    # Few streams need these.
    from streamrec.pipeline.excluded_keys import excluded_by_keys, read_excluded
    from streamrec.pipeline.terms.exclusions import find_records, name_pairs, read_list

    if isinstance(listed, dict):
        return await excluded_by_keys(settings, stores, index, parts)
    named, place = name_pairs(listed) if isinstance(listed, list) else iter(()), "exclude"
    if isinstance(listed, str):
        async with limit_time(settings, "reading the list of excluded records", listed):
            data = await read_excluded(stores, listed)
        named, place = read_list(data, listed), masked(listed)
    urls = [info.url for info in objects]
    totals = _totals(index, parts)
    return await in_thread(partial(find_records, named, urls, totals, place))


def _totals(index: Index | None, parts: Sequence[Listed]) -> list[int] | None:
    """Return the records of each shard; ``None``: neither an index nor a folder says them."""
    if index is None:
        return [own.total for part in parts for own in part.parts] or None
    totals: list[int] = index.columns.records.tolist()
    return totals


async def _list_parts(stores: Stores, settings: DatasetSettings) -> list[list[ObjectInfo]]:
    """List the shards of each component of a mix; else of the only source."""
    parts = [await stores.list_named(part) for part in settings.components.values()]
    if settings.shuffle:  # the order in which a program lists files may be its machine's
        parts = [sorted(part, key=attrgetter("url")) for part in parts]
    return parts


async def _open_folders(
    stores: Stores, settings: DatasetSettings, split: str | dict[str, str]
) -> tuple[list[Listed], DatasetSettings]:
    """Read the TFDS folders of a source; return their shards, and the settings with features.

    Raises:
        ConfigError: A split or a feature cannot be read, or the components of a mix have different
            features.
    """
    found: list[Listed] = []
    features: dict[str, Any] | None = None
    for name, folder in settings.components.items():
        assert isinstance(folder, str)
        text = split if isinstance(split, str) else split[name]
        async with limit_time(settings, "reading a TFDS folder", folder):
            info = await read_info(stores, folder)
            shards = split_shards(info, folder, text)
            if settings.features is None:
                stored = describe((await read_features(stores, folder)).check())
                own = rename_specs(stored or {}, settings.renames[name])
                features = own if features is None else _alike(features, own, name)
        found.append(shards.shuffled() if settings.shuffle else shards)
    if features is None:
        return found, settings
    return found, settings.model_copy(update={"features": features})


def _alike(features: dict[str, Any], own: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the features of a mix's components, which must be the same."""
    odd = [key for key in features | own if features.get(key) != own.get(key)]
    if odd:
        raise ConfigError(
            f"the component {name!r} has another feature {odd[0]!r} than those before it; give "
            "features, with specs of those that all components have"
        )
    return features


def _of_components(settings: DatasetSettings) -> Iterator[DatasetSettings]:
    """Yield the settings with the source of each component alone, which errors name."""
    split = settings.split
    for name, source in settings.components.items():
        own = split[name] if isinstance(split, dict) else split
        yield settings.model_copy(update={"source": source, "split": own})


async def _index_of(
    settings: DatasetSettings, named: Literal[True] | str, stores: Stores, part: Listed
) -> Index:
    """Return the index of some shards.

    Raises:
        StaleIndex: The shards have other numbers of records than their folder says.
    """
    # The index of a split describes all of its shards, and these may be a few of them.
    wholes = part.wholes or [part.objects]
    indexes = [await read_index(settings, named, stores, whole) for whole in wholes]
    if not part.parts:
        return indexes[0]
    entries = {
        info.url: entry
        for whole, index in zip(wholes, indexes, strict=True)
        for info, entry in zip(whole, index.entries, strict=True)
    }
    found = [entries[info.url] for info in part.objects]
    for info, entry, own in zip(part.objects, found, part.parts, strict=True):
        if entry.records != own.total:
            raise StaleIndex(
                f"the index counts {entry.records} records in this shard, and the folder's "
                f"dataset_info.json {own.total}; write the index again with "
                f"{command_for('index', vars(settings))}",
                url=info.url,
            )
    return Index(found)


async def read_index(
    settings: DatasetSettings,
    named: Literal[True] | str,
    stores: Stores,
    objects: Sequence[ObjectInfo],
) -> Index:
    """Read the index that is named, or the one beside the shards; select the shards' entries.

    Args:
        settings: The dataset's settings.
        named: The index's URL; ``True``: it is beside the shards.
        stores: The stores, one of which has the index.
        objects: The shards.

    Raises:
        ConfigError: The signatures of the shards' URLs do not open it.
        ObjectNotFound: There is no index.
        MalformedIndex: It cannot be read.
        StaleIndex: It does not describe these shards: one is missing in it, or has changed since.
        StoreUnavailable: The store stalls.
    """
    source = settings.source
    if named is True and isinstance(source, str) and source.endswith(SUFFIX):
        # The source is this index, so it names these shards, in this order.
        index = await _read(settings, stores, unescape(with_one_name(source)), ())
        if len(index.entries) == len(objects):
            return index.by_name()
    urls = [info.url for info in objects]
    # An index that is named stands alone; one beside the shards may have either of two names.
    places = index_places(urls) if named is True else [named]
    for url in places:
        with suppress(ObjectNotFound):
            index = await _read(settings, stores, url, urls if named is True else ())
            return await in_thread(_select, index, objects, command_for("index", vars(settings)))
    await _check_there(stores, objects[0])
    other = ", or set index to its URL" if settings.weights is None else ""
    raise ObjectNotFound(
        f"there is no index; write one with {command_for('index', vars(settings))}{other}",
        url=places[0],
    )


async def _check_there(stores: Stores, shard: ObjectInfo) -> None:
    """Check that a shard without an index is not missing, or a directory: the fault that counts.

    Raises:
        StoreError: It cannot be read.
    """
    if shard.size is None:  # it was named, and not listed
        await read_range(stores.store_for(shard.url), shard, 0, 1)


async def _read(
    settings: DatasetSettings, stores: Stores, url: str, shards: Sequence[str]
) -> Index:
    if url in stores.indexes:  # it was read in place of a listing
        return stores.indexes[url]
    async with limit_time(settings, "reading the index", url):
        # One byte more than an index may have, so that a larger one is refused.
        remedy = "set index to its own signed URL, or give a source in s3:// or gs://"
        data = await read_beside(stores, url, shards, LARGEST + 1, what="index", remedy=remedy)
        return await in_thread(partial(Index.parse, data, url=url))


def _select(index: Index, objects: Sequence[ObjectInfo], again: str) -> Index:
    """Return the index of these shards alone; the command ``again`` writes it anew."""
    names = names_apart([info.url for info in objects])
    found = [_find(index, name, info) for name, info in zip(names, objects, strict=True)]
    shards = [shard for shard in found if shard is not None]
    if len(shards) < len(found):
        named = zip(names, objects, found, strict=True)
        raise _lacking([(name, info) for name, info, shard in named if shard is None], again)
    own = index.select(shards)
    sizes = own.columns.sizes.tolist()
    for info, size, etag in zip(objects, sizes, own.columns.etags, strict=True):
        check_version(info, size, etag)
    return own


def _find(index: Index, name: str, info: ObjectInfo) -> int | None:
    # The other name has a digest, which most need not wait for.
    own = index.find([name])
    return index.find(names_alone(name, info.url)) if own is None else own


def _lacking(shards: Sequence[tuple[str, ObjectInfo]], again: str) -> StaleIndex:
    """Return the error for shards that are not in the index."""
    names = [name for name, _ in shards]
    says = f"the index has no shard of this name ({names[0]})"
    if len(names) > 1:
        two = " and ".join(names[:2])
        says = f"{len(names)} shards of the source are not in the index, such as {two}"
    return StaleIndex(
        f"{says}; if the source names shards of another dataset, too, name only this dataset's; "
        f"otherwise write the index again with {again}",
        url=shards[0][1].url,
    )


def apply_index(settings: DatasetSettings, index: Index) -> DatasetSettings:
    """Check the settings against an index, and set ``compression`` to "none", as an index requires.

    Raises:
        ConfigError: The settings contradict the index, or it counts no record.
    """
    if settings.compression not in ("auto", "none"):
        raise ConfigError(
            "an index describes shards that are not compressed, but compression is "
            f"{settings.compression!r}; leave one of the two out"
        )
    if not settings.ordered:
        raise ConfigError(
            "ordered=False keeps no order, and an index sets one; leave one of the two out"
        )
    if not index.records:
        raise ConfigError("the index counts no record in these shards; check the source")
    return settings.model_copy(update={"compression": "none"})


async def with_inferred_features(
    settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo], counts: Sequence[int]
) -> DatasetSettings:
    """Infer the features, as :func:`first_features` does. Pictures stay encoded, and a log says so.

    Raises:
        ConfigError: The setting ``rename`` names a feature that is not there.
        StreamrecError: As of :func:`first_features`.
    """
    features = await first_features(settings, stores, objects, counts)
    check_inferred(features, settings.renames)
    stored = as_stored(features)
    for name in [name for name in features if features[name] != stored[name]]:
        log.info(
            "features='infer' gives the pictures of feature %r as they are stored; to decode "
            "them, name the features, with sr.Image() for this one",
            name,
        )
    return settings.model_copy(update={"features": describe(stored)})


async def first_features(
    settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo], counts: Sequence[int]
) -> dict[str, FeatureSpec]:
    """Infer the features from the first records of some shards.

    Args:
        settings: The dataset's settings.
        stores: The stores of the shards.
        objects: The shards; in a mix, one component after the other.
        counts: The number of shards of each component of a mix; else that of all.

    Raises:
        ConfigError: There is no record, or :func:`infer_features` cannot infer them.
        MalformedExample: The records are not Examples.
        RecordTooLarge: The first record is too large.
        StoreUnavailable: The store stalls.
    """
    urls = [info.url for info in objects]
    async with limit_time(settings, "inferring features", objects[0].url):
        samples = await sample_records(stores, urls, settings.compression, record_limit(settings))
    if not samples:
        raise ConfigError(
            "the features cannot be inferred, because all shards are empty (the first is "
            f"{masked(objects[0].url)}); name the features, or correct the source"
        )
    places = [(one, number) for one in samples for number in range(len(one.records))]
    records = (record for one in samples for record in one.records)
    names = [
        new
        for new, count in zip(settings.renames.values(), counts, strict=True)
        for _ in range(count)
    ]
    by_url = dict(zip(urls, names, strict=True))
    return infer_features(
        records,
        lambda total: FirstRecords.place(*places[total]),
        lambda total: by_url[places[total][0].url],
    )
