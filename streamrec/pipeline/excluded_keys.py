"""The records that have some values of a feature, by the index of this key."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from streamrec.config.places import command_for
from streamrec.errors import ConfigError, ObjectNotFound, StaleIndex
from streamrec.formats.examples.renaming import Renames
from streamrec.formats.shards.index_names import KEYS, LENGTHS, index_places
from streamrec.formats.shards.key_index import LARGEST, KeyIndex, key_url, value_of, values_in
from streamrec.masking import masked
from streamrec.pipeline.terms.exclusions import MOST_BYTES as LONGEST_LIST
from streamrec.pipeline.terms.exclusions import Exclusions
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.open import import_stores, limit_time, read_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.index import Index, ShardEntry
    from streamrec.pipeline.tfds_folder import Listed
    from streamrec.stores.open import Stores

    Numbers = npt.NDArray[np.int64]

log = logging.getLogger("streamrec.pipeline")


async def excluded_by_keys(
    settings: DatasetSettings, stores: Stores, index: Index | None, listed: Sequence[Listed]
) -> Exclusions:
    """Find the records of the values that ``exclude`` names by feature.

    Args:
        settings: The dataset's settings.
        stores: The stores, one of which has the indexes.
        index: The index of the shards; ``None``: the settings name none.
        listed: The shards of each component of a mix; else of the only source.

    Raises:
        ConfigError: There is no index, or a value is not one of its feature.
        StoreError: An index of a key, or a file of values, cannot be read, or is stale.
        MalformedIndex: The index of a key cannot be used.
    """
    found: dict[int, Numbers] = {}
    assert isinstance(settings.exclude, dict)
    for feature, given in settings.exclude.items():
        values = await _values(settings, stores, given) if isinstance(given, str) else given
        records = await records_with(settings, stores, index, listed, feature, values)
        for shard, numbers in records.items():
            found[shard] = np.union1d(found.get(shard, np.empty(0, np.int64)), numbers)
    return Exclusions(found, "exclude")


async def records_with(
    settings: DatasetSettings,
    stores: Stores,
    index: Index | None,
    listed: Sequence[Listed],
    feature: str,
    values: Sequence[str | int],
) -> dict[int, Numbers]:
    """Find the records that have one of the values; arguments and errors as above.

    Returns:
        The numbers of the records of each shard that has some, by the shard's number.
    """
    if index is None or settings.index is None:
        own = vars(settings)
        raise ConfigError(
            f"the records with a value of {feature!r} are found by indexes alone; write them with "
            f"{command_for('index', own, '--key', feature)} and set index=True, or list the "
            f"records with {command_for('which', own, '--key', feature, '--values FILE')}"
        )
    found: dict[int, Numbers] = {}
    renames = Renames(by_component=tuple(settings.renames.values()))
    firsts = accumulate((len(one.objects) for one in listed[:-1]), initial=0)
    for component, (first, one) in enumerate(zip(firsts, listed, strict=True)):
        # An index of a key has the name that the records have.
        stored = renames.stored_name(feature, component)
        again = command_for("index", vars(settings), "--key", stored)
        # The index of a split describes all of its shards, and these may be a few of them.
        for whole in one.wholes or [one.objects]:
            urls = [info.url for info in whole]
            keys, url = await _read_keys(settings, stores, urls, stored)
            named = {*urls}
            entries = {
                (number, info.url): index.entries[number]
                for number, info in enumerate(one.objects, first)
                if info.url in named
            }
            some = await in_thread(partial(_find, keys, url, entries, values, again))
            found |= {n: _within(numbers, one, n - first) for n, numbers in some.items()}
    return {shard: numbers for shard, numbers in found.items() if len(numbers)}


def _within(numbers: Numbers, listed: Listed, shard: int) -> Numbers:
    """Return the numbers of those records of a shard that the split names."""
    if not listed.parts:
        return numbers
    first, records, _ = listed.parts[shard]
    return numbers[(first <= numbers) & (numbers < first + records)]


async def _read_keys(
    settings: DatasetSettings, stores: Stores, urls: Sequence[str], feature: str
) -> tuple[KeyIndex, str]:
    """Read the index of a key that stands beside the index of these shards."""
    data, url = await read_companion(settings, stores, urls, feature, KEYS)
    keys = await in_thread(partial(KeyIndex.parse, data, url=url))
    if keys.feature != feature:
        raise StaleIndex(
            f"this index has the values of {keys.feature!r}, not those of {feature!r}; "
            f"write it again with {command_for('index', vars(settings), '--key', feature)}",
            url=url,
        )
    return keys, url


REMEDIES = {
    KEYS: ("index of the values", "--key", "list the records with {which}"),
    LENGTHS: ("index of the lengths", "--lengths", "leave balance out"),
}
"""The name of each object beside an index, the option that writes it, and what else can be done."""


async def read_companion(
    settings: DatasetSettings, stores: Stores, urls: Sequence[str], feature: str, ending: str
) -> tuple[bytes, str]:
    """Read what stands beside the index of some shards; return its bytes and its URL.

    Args:
        settings: The dataset's settings.
        stores: The stores, one of which has it.
        urls: The shards.
        feature: The feature that it is about.
        ending: The end of its name: :data:`KEYS` or :data:`LENGTHS`.

    Raises:
        StoreError: It cannot be read.
        ConfigError: It is too large.
    """
    what, option, otherwise = REMEDIES[ending]
    which = command_for("which", vars(settings), "--key", feature, "--values FILE")
    otherwise = otherwise.format(which=which)
    named = settings.index
    places = index_places(urls) if named is True or named is None else [named]
    for url in [key_url(place, feature, ending) for place in places]:
        with suppress(ObjectNotFound):
            async with limit_time(settings, f"reading the {what} of a feature", url):
                remedy = "give a source in s3:// or gs://"
                beside = urls if named is True else ()
                # One byte more than it may have, so that a larger one is refused.
                data = await read_beside(stores, url, beside, LARGEST + 1, what=what, remedy=remedy)
            if len(data) > LARGEST:
                raise ConfigError(f"{masked(url)} has more than {LARGEST} bytes; {otherwise}")
            return data, url
    raise ObjectNotFound(
        f"there is no {what} of {feature!r}; write it with "
        f"{command_for('index', vars(settings), option, feature)}, or {otherwise}",
        url=key_url(places[0], feature, ending),
    )


def _find(
    keys: KeyIndex,
    url: str,
    entries: Mapping[tuple[int, str], ShardEntry],
    values: Iterable[str | int],
    again: str,
) -> dict[int, Numbers]:
    """Find the records of some shards, which may be fewer than the index has.

    Args:
        keys: The index of the key.
        url: Its URL.
        entries: The entry of each shard in the index of the dataset, by its number and URL.
        values: The values.
        again: The command that writes a stale index again.
    """
    wanted = [value_of(value, keys.feature, keys.dtype) for value in values]
    shards, records, missing = keys.find(wanted)
    if missing:
        log.info(
            "%d of %d values of %r are in no record of %s",
            missing, len({*wanted}), keys.feature, masked(url),
        )  # fmt: skip
    found: dict[int, Numbers] = {}
    for (number, shard_url), entry in entries.items():
        own = keys.shard_of(entry)
        if own is None:
            raise StaleIndex(
                f"the index of the values of {keys.feature!r} does not describe this shard as the "
                f"index of the dataset does; write both again with {again}",
                url=shard_url,
            )
        if (has := shards == own).any():
            found[number] = records[has]
    return found


async def _values(settings: DatasetSettings, stores: Stores, url: str) -> list[str]:
    """Read a file of values, one on each line."""
    async with limit_time(settings, "reading the values of excluded records", url):
        data = await read_excluded(stores, url)
    if len(data) > LONGEST_LIST:
        raise ConfigError(f"{masked(url)} has more than {LONGEST_LIST} bytes; exclude fewer values")
    try:
        values = values_in(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{masked(url)} is not UTF-8; write a value on each line") from None
    if not values:
        raise ConfigError(f"{masked(url)} has no value; write each value on a line of its own")
    return values


async def read_excluded(stores: Stores, url: str) -> bytes:
    """Read a list of excluded records, or a file of values.

    Raises:
        StoreError: It cannot be read.
    """
    await import_stores([url])
    # One byte more than a list may have, so that a longer one is refused.
    return await read_beside(
        stores, url, (), LONGEST_LIST + 1, what="list", remedy="sign its own URL"
    )
