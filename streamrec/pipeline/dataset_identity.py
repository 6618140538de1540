"""The identity of a dataset: the orders of its records, and the checks of what determines them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from streamrec.config.consistency import check_change
from streamrec.config.dataset import DEFAULT_LANES
from streamrec.config.places import command_for
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import has_pictures
from streamrec.pipeline.batch.origin import Components
from streamrec.plan.order.mixture import (
    DrawChange,
    component_seeds,
    draws_of,
    text_of,
    waiting_components,
)
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import Windows, bytes_of_shard
from streamrec.plan.state.fingerprint import (
    AS_IT_COMES,
    AS_KEPT,
    BUCKETS,
    COUNTED,
    DRAWN,
    FEW_A_WINDOW,
    WINDOWED,
    Fingerprint,
    by_shard,
    digest,
    names_digest,
)
from streamrec.plan.state.resume_point import read_changes
from streamrec.stores.base.source_text import content_name, has_more
from streamrec.values.record_rows import Chunks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.index import Index
    from streamrec.pipeline.batch.functions import Functions
    from streamrec.plan.order.mixture import Draws
    from streamrec.plan.order.record_order import Order
    from streamrec.plan.order.shard_order import ShardPart

STAGES = ("pack", "window", "filter")


def uncounting_stage(settings: DatasetSettings) -> str:
    """Name the stage that makes an unknown number of rows of its records; "" if there is none."""
    return next((name for name in STAGES if getattr(settings, name) is not None), "")


def check_ranks(settings: DatasetSettings, lanes: int, rank: int, world_size: int) -> None:
    """Check that the lanes divide over the ranks, and that all ranks end at the same step.

    Raises:
        ConfigError: They do not; the message says which settings help.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank must be from 0 to {world_size - 1}, not {rank}; correct rank or world_size"
        )
    if lanes % world_size:
        serve = ", ".join(str(n) for n in range(1, lanes + 1) if lanes % n == 0)
        raise ConfigError(
            f"world_size {world_size} does not divide the {lanes} lanes; these do: {serve}"
            " (or set lanes to a multiple of world_size: it determines the order)"
        )
    if world_size > 1:
        _check_ends(settings, lanes, world_size)


def _check_ends(settings: DatasetSettings, lanes: int, world_size: int) -> None:
    stage, serves = uncounting_stage(settings), "set"
    is_counted = settings.index is not None and not stage
    if settings.exhausted != "repeat":
        _check_exhausted(settings, world_size)
        return
    if is_counted or settings.epochs is None or settings.steps_per_epoch is not None:
        return
    what = f"{stage} makes an unknown number of rows of a lane's records"
    if not stage:
        what = "shards hold different numbers of records"
    if not stage and settings.weights is None:
        serves = (
            f"write an index with {command_for('index', vars(settings))} and set index=True (less "
            f"than a record of each of the {lanes} lanes, and less than a batch of each rank, is "
            'then left out, or added by remainder="pad"), or set'
        )
    raise ConfigError(
        f"{what}, so {world_size} ranks would end at different steps and wait for each other "
        f"for ever; {serves} steps_per_epoch to the number of batches every rank is to get, or "
        "epochs to None"
    )


def _check_exhausted(settings: DatasetSettings, world_size: int) -> None:
    stage = uncounting_stage(settings)
    remedy = f"with {stage} no index counts the rows;"
    if not stage:
        remedy = 'set exhausted to "rest" and index=True, with which all ranks end at one step, or'
    if stage or settings.index is None or settings.exhausted != "rest":
        raise ConfigError(
            f"components end at different steps on {world_size} ranks, which would wait for each "
            f'other for ever; {remedy} set exhausted to "repeat", and steps_per_epoch to the '
            "number of batches every rank is to get"
        )
    if settings.remainder == "pad":
        raise ConfigError(
            f'with exhausted "rest", {world_size} ranks leave out records that do not fill a batch '
            'of all ranks, and add no rows; leave remainder "pad" out, or read on one rank'
        )


def check_batches(settings: DatasetSettings, batch_size: int | None, remainder: str) -> None:
    """Check that single records are not asked for where the settings are about whole batches.

    Raises:
        ConfigError: They are; the message names the setting.
    """
    if batch_size is not None:
        return
    if not settings.ordered:
        raise ConfigError("ordered=False delivers whole batches alone; set batch_size")
    if remainder == "pad":
        raise ConfigError('remainder "pad" fills up batches; set batch_size')
    if settings.transform is not None:
        raise ConfigError("transform takes whole batches; set batch_size, or use map")
    if settings.length_buckets is not None:
        raise ConfigError("length_buckets sort records into whole batches; set batch_size")
    if settings.balance is not None:
        raise ConfigError("balance deals the rows of whole batches; set batch_size")
    if settings.cache is not None and settings.cache.of == "batches":
        raise ConfigError(
            'a cache of "batches" cannot keep single records; set batch_size, or use a cache of '
            '"pictures" or of "ranges"'
        )


def check_pictures(settings: DatasetSettings) -> None:
    """Refuse a cache of pictures where no feature is one, so that it would keep none.

    Raises:
        ConfigError: No feature is a picture.
    """
    if settings.cache is None or settings.cache.of != "pictures":
        return
    if not isinstance(settings.features, dict) or not has_pictures(settings.features):
        raise ConfigError(
            'a cache of "pictures" keeps what sr.Image decodes, and no feature has this spec; name '
            'such a feature, or use a cache of "ranges"'
        )


def check_mapped(settings: DatasetSettings, functions: Functions) -> None:
    """Refuse a cache of what ``map`` makes where that differs from epoch to epoch.

    Raises:
        ConfigError: The map is given a generator.
    """
    if settings.cache is None or settings.cache.of != "mapped" or functions.map is None:
        return
    if functions.map.is_random:
        raise ConfigError(
            'a cache of "mapped" keeps one result for each record, and '
            f"map {functions.map.name} takes rng, to give others in each epoch; draw in transform, "
            'which runs after the cache, or use a cache of "pictures" or of "ranges"'
        )


def check_parts(settings: DatasetSettings, parts: Sequence[ShardPart]) -> None:
    """Refuse to skip damage where a split cuts a shard: behind it, records' numbers are a guess.

    Raises:
        ConfigError: The settings ask for both, and no index tells the numbers.
    """
    if settings.on_corrupt == "raise" or settings.index is not None:
        return
    if not all(part.is_whole for part in parts):
        raise ConfigError(
            f"split {settings.split!r} ends inside shards, and with on_corrupt="
            f"{settings.on_corrupt!r} the numbers of the records behind damage are a guess; write "
            f"an index with {command_for('index', vars(settings))} and set index=True, or slice by "
            "shards, as in 'train[:3shard]'"
        )


def check_places(settings: DatasetSettings, batch_size: int | None) -> None:
    """Refuse single records where damaged or excluded ones would have to leave a masked row.

    Raises:
        ConfigError: An index counts the records, some are left out, and there is no batch size.
    """
    counted = settings.index is not None and not uncounting_stage(settings)
    if not counted or batch_size is not None:
        return
    if settings.exclude is not None:
        raise ConfigError(
            "with an index, exclude leaves masked rows in place of records, but single records "
            "have no mask; set batch_size, or leave out index"
        )
    if settings.on_corrupt != "raise":
        raise ConfigError(
            f"with an index, on_corrupt={settings.on_corrupt!r} leaves masked rows where records "
            "are damaged, but single records have no mask; set batch_size, or leave out index"
        )


T = TypeVar("T")


class Identity:
    """The orders of a dataset, for all ranks and runs alike, and their fingerprint.

    Args:
        settings: The dataset's settings.
        functions: The user's functions.
        shards: The shards' URLs in their order; in a mix, one component after the other.
        index: The index of the shards; ``None``: the order is by shard.
        counts: The number of shards of each component of a mix; else that of all.
        parts: The records of each shard; empty: all that they have.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        functions: Functions,
        *,
        shards: Sequence[str],
        index: Index | None,
        counts: Sequence[int],
        parts: Sequence[ShardPart] = (),
    ) -> None:
        self._settings = settings
        self._functions = functions
        self.shards = shards
        self._index = index
        self._parts = tuple(parts)
        self.counts = counts
        # Each lane needs one record of each component, or by shard one shard. From the data alone:
        # lanes that followed from the ranks or the machine would change the order.
        auto = min(DEFAULT_LANES, *self._lasting_sizes())
        self.lanes = auto if settings.lanes == "auto" else settings.lanes
        """The lanes of all ranks."""
        self.kind = by_shard(1)
        """The kind of order, as a fingerprint names it."""
        self._first_shards = tuple(accumulate(counts[:-1], initial=0))
        self.orders = self._make_orders()
        """An order for each component of a mix or each open shard of a lane; else a single one."""
        self._shard_bytes = self._weigh_shards()
        if self._shard_bytes:
            self.kind += FEW_A_WINDOW
        self.components: Components | None = None
        """The components of a mix; ``None``: nothing is mixed."""
        self.draws: Draws | None = None
        """The draws of a mix; ``None``: nothing is mixed."""
        if settings.weights is not None:
            self.components = Components(tuple(settings.components), self._first_shards)
            self.draws = draws_of(settings.weights, self.lanes, settings.seed)
        # Here, and not for each run: of a million names they take a second or two.
        self._names = self._digest_of_names()

    def draw(self) -> None:
        """Draw the permutations of the first epoch, which a run would else do in the loop."""
        for order in self.orders:
            next(order.extents(0, 0), None)

    @property
    def is_counted(self) -> bool:
        """True if an index counts the records, and no stage makes more or fewer of them."""
        is_plain = self._settings.weights is None and not uncounting_stage(self._settings)
        return self._index is not None and is_plain

    @property
    def record_order(self) -> RecordOrder | None:
        """The order by record, if one counts the records of a run."""
        order = self.orders[0]
        return order if isinstance(order, RecordOrder) and self.is_counted else None

    def sublanes(self, world_size: int) -> int:
        """Return the number of sequences of shards that a rank reads side by side."""
        return len(self.orders) * self.lanes // world_size

    def windows(self) -> Windows | ChunkWindows | None:
        """Return the windows within which records are shuffled; ``None``: there are none."""
        settings = self._settings
        if not settings.has_windows:
            return None
        windows = Windows(
            total=int(settings.shuffle_window),
            lanes=self.lanes,
            seed=settings.seed,
            shuffles=settings.shuffle,
            open_shards=len(self.orders) if self.draws is None else 1,
            shard_bytes=self._shard_bytes,
        )
        return windows if self.record_order is None else ChunkWindows(self.record_order, windows)

    def _weigh_shards(self) -> int:
        """Return the bytes for which a shard or chunk counts in windows; 0: its records alone.

        Buckets sort by the records' own lengths, and the draws of a mix count by them.
        """
        settings, index = self._settings, self._index
        window = int(settings.shuffle_window)
        if not settings.shuffle or settings.length_buckets or settings.weights is not None:
            return 0
        if self.record_order is None or index is None:
            return bytes_of_shard(len(self.shards), window)
        chunks = index.chunks()
        least = bytes_of_shard(len(chunks.begin), window)
        # Of larger chunks, windows have few enough.
        return least if int((chunks.end - chunks.begin).sum()) < least * len(chunks.begin) else 0

    @property
    def waiting(self) -> list[str]:
        """The names of a mix's components that have no weight until it changes."""
        weights = self._settings.weights
        return [] if weights is None else waiting_components(weights)

    @property
    def records(self) -> int | None:
        """The records of an epoch; ``None``: neither an index nor the source says them."""
        if self._parts:
            return sum(part.records for part in self._parts)
        return None if self._index is None else self._index.records

    def _lasting_sizes(self) -> list[int]:
        """Return the size of each component that has a weight from the beginning.

        It is the number of records that an index counts, else that of shards.
        """
        counts = self.counts
        if self._index is not None:
            columns = self._index.columns
            records = [part.records for part in self._parts] or columns.records.tolist()
            counts = [sum(records[first:last]) for first, last in self._bounds]
        parts = zip(self._settings.components, counts, strict=True)
        return [count for name, count in parts if name not in self.waiting]

    @property
    def _bounds(self) -> Iterator[tuple[int, int]]:
        """The number of each component's first shard, and of the one after its last."""
        return pairwise(accumulate(self.counts, initial=0))

    def before_joining(self, fingerprint: Fingerprint, names: Collection[str]) -> Fingerprint:
        """Return the fingerprint of the mix before components of these names joined it."""
        weights = self._settings.weights
        assert weights is not None
        kept = [(first, _without(parts, names)) for first, parts in weights]
        counts = dict(zip(self._settings.components, self.counts, strict=True))
        return replace(
            fingerprint,
            order=self._order_without(names),
            names=self._digest_of_names(names),
            shards=sum(_without(counts, names).values()),
            mix=text_of(kept, self._settings.exhausted),
        )

    def _order_without(self, names: Collection[str]) -> str:
        """Return the kind of order without some components: with an index, it has its digest."""
        if self._index is None:
            return self.kind
        own = [range(first, last) for first, last in self._bounds]
        parts = _without(dict(zip(self._settings.components, own, strict=True)), names)
        shards = [shard for part in parts.values() for shard in part]
        return f"{self._counting}{self._index.select(shards).digest()}"

    def fingerprint(self, batch_size: int | None, world_size: int) -> Fingerprint:
        """Return the facts that determine the order of a stream over the dataset."""
        settings = self._settings
        return Fingerprint(
            names=self._names,
            shards=len(self.shards),
            order=self.kind if settings.ordered else self.kind + AS_IT_COMES,
            lanes=self.lanes,
            shuffle=settings.shuffle,
            seed=settings.seed if self._needs_seed else 0,
            shuffle_window=int(settings.shuffle_window) if settings.has_windows else 0,
            global_batch=batch_size * world_size if batch_size else None,
            stages=self._stages(),
            mix="" if settings.weights is None else text_of(settings.weights, settings.exhausted),
        )

    def changes(self, fingerprint: Fingerprint) -> list[DrawChange]:
        """Return the changes of a mix's draws that a stream's fingerprint names.

        Raises:
            ConfigError: The settings allow none, or the weights are not those of the components.
            MalformedPosition: They cannot be read.
        """
        changes = read_changes(fingerprint.mix_changes)
        for step, weights in changes:
            check_change(self._settings, step, weights)
        rows, seed = fingerprint.global_batch or 1, self._settings.seed
        # Components that joined the mix after a change had no weight there.
        without: Mapping[str, float] = dict.fromkeys(self.waiting, 0.0)
        return [
            DrawChange(step * rows, draws_of([(0, {**without, **weights})], self.lanes, seed))
            for step, weights in changes
        ]

    def _make_orders(self) -> tuple[Order, ...]:
        settings = self._settings
        # An order that is not shuffled is the same for every seed.
        seed = settings.seed if settings.shuffle else 0
        seeds = [seed] * len(self.counts)
        if settings.weights is not None and settings.shuffle:
            # Else components of equal length would be permuted alike.
            seeds = component_seeds(seed, settings.weights)
        if self._index is not None:
            return self._orders_by(self._index, seeds)
        orders = tuple(
            ShardOrder(
                shards=count,
                lanes=self.lanes,
                shuffle=settings.shuffle,
                seed=own_seed,
                first_shard=first,
                parts=self._parts[first : first + count],
            )
            for count, own_seed, first in zip(self.counts, seeds, self._first_shards, strict=True)
        )
        if settings.weights is not None or not settings.shuffle:
            return orders
        open_shards = open_at_once(len(self.shards), self.lanes, int(settings.shuffle_window))
        self.kind = by_shard(open_shards)
        return orders[0].divide(open_shards)

    def _orders_by(self, index: Index, seeds: Sequence[int]) -> tuple[RecordOrder, ...]:
        settings = self._settings
        self.kind = f"{self._counting}{index.digest()}"
        # Chunks that follow each other are read as one extent, except where a state counts
        # extents, or where the search for the end of damage must stop at the chunk's end.
        joins = self.is_counted and settings.on_corrupt == "raise" and not settings.has_windows
        chunks, origin = index.chunks(), None if self.is_counted else 0
        return tuple(
            RecordOrder(
                table=_of_shards(chunks, first, last),
                lanes=self.lanes,
                shuffle=settings.shuffle,
                seed=seed,
                joins=joins,
                origin=origin,
                shard_parts=dict(enumerate(self._parts[first:last], first)),
            )
            for (first, last), seed in zip(self._bounds, seeds, strict=True)
        )

    @property
    def _counting(self) -> str:
        """The beginning of the kind of an order by record: how its records are counted."""
        if self.is_counted:
            return WINDOWED if self._settings.has_windows else COUNTED
        return DRAWN if self._settings.is_mixed_by_index else AS_KEPT

    @property
    def _needs_seed(self) -> bool:
        """True if the records, or what is made of them before they are batched, depend on it."""
        draws = self.draws is not None or self._functions.draw_in_lanes
        return self._settings.has_windows or draws

    def _digest_of_names(self, without: Collection[str] = ()) -> str:
        """Digest the shards' names; in a mix, those of each component that is not left out."""
        parts = zip(self._settings.components, self._bounds, strict=True)
        bounds = [own for name, own in parts if name not in without]
        digests = [digest_of_names(self.shards[a:b], self._parts[a:b]) for a, b in bounds]
        return digests[0] if self.draws is None else digest(" ".join(digests))

    def _stages(self) -> str:
        pack, buckets = self._settings.pack, self._settings.length_buckets
        named = str(pack) if pack else f"{buckets}{BUCKETS}" if buckets else ""
        parts = self._functions.in_lanes, str(self._settings.window or ""), named
        return ", ".join(filter(None, parts))


def _of_shards(chunks: Chunks, first: int, last: int) -> Chunks:
    """Return the chunks of the shards from ``first`` to before ``last``."""
    begin, end = np.searchsorted(chunks.shard, [first, last]).tolist()
    return Chunks(*(column[begin:end] for column in chunks))


def _without(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}


def digest_of_names(urls: Sequence[str], parts: Sequence[ShardPart]) -> str:
    """Return the digest of shards' names, and of the records that a split cuts out of them."""
    names = names_digest(_own_names(urls))
    cuts = [
        f"{shard}[{part.first}:{part.first + part.records}]"
        for shard, part in enumerate(parts)
        if not part.is_whole
    ]
    # Whole shards have the digest of a stream that names them by a pattern, whose order it is.
    return digest(" ".join([names, *cuts])) if cuts else names


def _own_names(urls: Sequence[str]) -> Sequence[str]:
    """Return the names that copies have, too; URLs, where only a query tells shards apart."""
    if not has_more("\n".join(urls)):  # a million are looked through at once
        return urls
    names = [content_name(url) for url in urls]
    return names if len({*names}) == len({*urls}) else list(urls)
