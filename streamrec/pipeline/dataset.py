"""The dataset: its shards, its order, and the runs over it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.config.memory_budget import batch_limit, memory_budget, pixel_limit
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.formats.examples.claims import DecodeLimits
from streamrec.formats.examples.narrowing import dtype_names, narrowed
from streamrec.pipeline.assembler import THREADS
from streamrec.pipeline.batch.functions import Functions
from streamrec.pipeline.batch.origin import Components
from streamrec.pipeline.batch.picture_cache import programs
from streamrec.pipeline.batch_cache import BatchCache, CachedRun, versions_of
from streamrec.pipeline.dataset_checks import (
    check_batches,
    check_mapped,
    check_pictures,
    check_places,
    check_ranks,
    uncounted,
)
from streamrec.pipeline.dataset_opening import (
    first_features,
    indexed_settings,
    read_index,
    with_inferred_features,
)
from streamrec.pipeline.fetch.range_queue import LearnedFacts, Shards
from streamrec.pipeline.run import Run
from streamrec.pipeline.terms.memory_needs import NO_CEILING, MemoryNeeds, RunCeiling
from streamrec.pipeline.terms.run_plan import RunPlan
from streamrec.plan.order.mixture import component_seed, draws_of, text_of
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import Windows
from streamrec.plan.reading.next_use import NextUse, places_of
from streamrec.plan.state.fingerprint import (
    AS_IT_COMES,
    AS_KEPT,
    COUNTED,
    WINDOWED,
    by_shard,
    digest,
    names_digest,
)
from streamrec.plan.state.position import Fingerprint, Position
from streamrec.plan.state.record_run import RecordRun
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base import in_thread, let_pass
from streamrec.stores.open import Stores, import_stores
from streamrec.stores.source_text import content_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.cache import Kept
    from streamrec.flow.timings import Timings
    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.formats.shards.index import Index
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.terms.memory_needs import Measures
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.stores.base import BeforeRequest, ObjectInfo


class Dataset:
    """A dataset, opened with :meth:`open` and closed with :meth:`aclose`.

    Args:
        settings: The dataset's settings.
        stores: The stores of the shards; closed with the dataset.
        objects: The shards in their order, as often as they are named; in a mix, one component
            after the other.
        index: The index of the shards; ``None``: the order is by shard.
        counts: In a mix, the number of shards of each component.
        is_inferred: True if the features follow from some of the records.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        stores: Stores,
        objects: Sequence[ObjectInfo],
        index: Index | None = None,
        counts: Sequence[int] = (),
        *,
        is_inferred: bool = False,
    ) -> None:
        check_pictures(settings)
        self._is_inferred = is_inferred
        self.settings = settings
        self.objects = objects
        self.shards = tuple(found.url for found in objects)
        self._counts = counts or [len(objects)]
        most = index.records if index else min(self._counts)
        auto = min(DEFAULT_LANES, most)
        self.lanes = auto if settings.lanes == "auto" else settings.lanes
        self._functions = Functions.of(settings)
        check_mapped(settings, self._functions)
        self._stores = stores
        self._sizes = {i: found.size for i, found in enumerate(objects) if found.size is not None}
        self._etags = {i: found.etag for i, found in enumerate(objects) if found.etag is not None}
        encodings = ((i, found.encoding) for i, found in enumerate(objects))
        self._encodings = {i: encoding for i, encoding in encodings if encoding is not None}
        self._versions: list[str] = []
        if self._keeps("batches") and stores.cache is not None:
            self._versions = versions_of(objects, stores.cache)
        self._index = index
        self._kind = by_shard(1)
        self._indexed: dict[int, tuple[int, str | None]] = {}
        self._first_shards = tuple(accumulate(self._counts[:-1], initial=0))
        self._orders = self._make_orders()
        self._order = self._orders[0]
        self._components = self._draws = None
        if settings.weights is not None:
            self._components = Components(tuple(settings.components), self._first_shards)
            self._draws = draws_of(settings.weights, self.lanes, settings.seed)
        # Here, and not for each run: of a million names they take a second or two.
        self._names = self._digest_of_names()
        self._places = places_of(self.shards) if self._forecasts else {}
        if self._keeps("pictures", "mapped"):
            programs()  # it looks for what is installed
        for order in self._orders:
            next(order.extents(0, 0), None)  # it draws the permutation of the first epoch
        if index is not None:
            self._add_facts_of_the_index(index)

    def _next_use(self, order: ShardOrder | RecordOrder) -> NextUse | None:
        """Let the cache know what a run reads; a mix's components have epochs of their own."""
        cache = self._stores.cache
        if cache is None or not self._forecasts:
            return None
        forecast = NextUse(order, self._places)
        cache.expect(forecast, self.objects)
        return forecast

    @property
    def _forecasts(self) -> bool:
        """True if a cache may know what a run reads; without one, the user has no folder for it."""
        has_one = self._stores.cache is not None and not self._keeps("batches")
        return has_one and self._draws is None

    def _make_orders(self) -> tuple[ShardOrder | RecordOrder, ...]:
        """Make an order for each component of a mix or each open shard of a lane; else one."""
        settings = self.settings
        seed = settings.seed if settings.shuffle else 0
        if self._index is not None:
            counted = WINDOWED if settings.has_windows else COUNTED
            kind = counted if self._is_counted else AS_KEPT
            self._kind = f"{kind}{self._index.digest()}"
            # Chunks that follow each other are read as one extent, except where a state counts
            # extents, or where the search for the end of damage must stop at the chunk's end.
            joins = self._is_counted and settings.on_corrupt == "raise" and not settings.has_windows
            chunks, origin = self._index.chunks(), None if self._is_counted else 0
            return (RecordOrder(chunks, self.lanes, settings.shuffle, seed, joins, origin),)
        seeds = [seed] * len(self._counts)
        if settings.weights is not None and settings.shuffle:
            seeds = [component_seed(seed, number) for number in range(len(seeds))]
        orders = tuple(
            ShardOrder(count, self.lanes, settings.shuffle, own_seed, first)
            for count, own_seed, first in zip(self._counts, seeds, self._first_shards, strict=True)
        )
        if settings.weights is not None or not settings.shuffle:
            return orders
        open_shards = open_at_once(len(self.shards), self.lanes, int(settings.shuffle_window))
        self._kind = by_shard(open_shards)
        return orders[0].divided(open_shards)

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all shards; ``None``: the store did not say them all."""
        known = len(self._sizes) == len(self.shards)
        return sum(self._sizes.values()) if known else None

    @property
    def _is_counted(self) -> bool:
        """True if an index counts the records, and no stage makes more or fewer of them."""
        return self._index is not None and not uncounted(self.settings)

    def _add_facts_of_the_index(self, index: Index) -> None:
        for shard, entry in enumerate(index.entries):
            if shard not in self._sizes or shard not in self._etags:
                self._indexed[shard] = entry.size, entry.etag
            self._sizes.setdefault(shard, entry.size)

    def __repr__(self) -> str:
        return f"<Dataset of {len(self.shards)} shards, {self.lanes} lanes>"

    @classmethod
    async def open(
        cls,
        settings: DatasetSettings,
        objects: Sequence[ObjectInfo] | None = None,
        before_request: BeforeRequest = let_pass,
    ) -> Self:
        """Open a dataset: find its shards and read its index.

        Args:
            settings: The dataset's settings.
            objects: The shards, if the caller has listed them; not for a mix.
            before_request: Called before each request to a store, as long as the dataset is open.

        Raises:
            ObjectNotFound: A pattern matches no shard.
            MalformedExample: Features cannot be inferred, since the records are not Examples.
            ConfigError: A URL's scheme is not known, or the storage options are wrong.
            StoreError: The listing failed or stalled.
        """
        make = partial(Stores, settings.storage_options, stall_timeout=settings.stall_timeout)
        # In a thread, since a cache looks for its folder.
        stores = await in_thread(partial(make, cache=settings.cache, before_request=before_request))
        try:
            await import_stores(settings.urls)
            if objects is None:
                parts = [await stores.listed(part) for part in settings.components.values()]
                if (
                    settings.shuffle
                ):  # the order in which a program lists files may be its machine's
                    parts = [sorted(part, key=lambda found: found.url) for part in parts]
            else:
                parts = [list(objects)]
            objects = [found for part in parts for found in part]
            index = None
            if settings.index is not None:
                index = await read_index(settings, settings.index, stores, objects)
                settings = indexed_settings(settings, index)
            is_inferred = settings.features == "infer"
            if is_inferred:
                settings = await with_inferred_features(settings, stores, objects)
            if settings.dtypes and isinstance(settings.features, dict):
                features = narrowed(settings.features, dtype_names(settings.dtypes))
                settings = settings.model_copy(update={"features": features})
            counts = [len(part) for part in parts]
            found = settings, stores, objects, index, counts
            # A million shards take seconds, and pictures import their libraries.
            return await in_thread(partial(cls, *found, is_inferred=is_inferred))
        except BaseException:
            await stores.aclose()
            raise

    @property
    def timings(self) -> Timings:
        """The times of the listings that found the shards; those of reads are the runs'."""
        return self._stores.timings

    async def infer_features(self) -> dict[str, FeatureSpec]:
        """Return specs that fit the first records; those of pictures decode them.

        Raises:
            StreamrecError: As of :func:`first_features`.
        """
        return await first_features(self.settings, self._stores, self.objects)

    async def aclose(self) -> None:
        """Close the connections to the stores."""
        await self._stores.aclose()

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Fingerprint:
        """Return the facts that determine the order of a stream over this dataset.

        Raises:
            ConfigError: The settings allow no such stream. A feeder can thus refuse it early.
        """
        check_ranks(self.settings, self.lanes, rank, world_size)
        self._remainder(world_size, batch_size)
        self._memory(world_size)
        settings = self.settings
        check_places(settings, batch_size)
        return Fingerprint(
            names=self._names,
            shards=len(self.shards),
            order=self._kind if settings.ordered else self._kind + AS_IT_COMES,
            lanes=self.lanes,
            shuffle=settings.shuffle,
            seed=settings.seed if self._needs_seed else 0,
            shuffle_window=int(settings.shuffle_window) if settings.has_windows else 0,
            global_batch=batch_size * world_size if batch_size else None,
            stages=self._stages(),
            mix="" if settings.weights is None else text_of(settings.weights, settings.exhausted),
        )

    @property
    def _needs_seed(self) -> bool:
        """True if the records, or what is made of them before they are batched, depend on it."""
        draws = self._draws is not None or self._functions.draw_in_lanes
        return self.settings.has_windows or draws

    def _digest_of_names(self) -> str:
        """Digest the shards' names; in a mix, those of each component."""
        parts = zip(self._first_shards, self._counts, strict=True)
        shards = [self.shards[first : first + count] for first, count in parts]
        digests = [names_digest(_own_names(urls)) for urls in shards]
        return digests[0] if self._draws is None else digest(" ".join(digests))

    def _stages(self) -> str:
        pack, buckets = self.settings.pack, self.settings.length_buckets
        named = str(pack) if pack else f"{buckets} length buckets" if buckets else ""
        return ", ".join(filter(None, [self._functions.in_lanes, named]))

    def run(
        self,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: ResumePoint | None,
        allocate: Allocate | None = None,
        budget: int | None = None,
        measures: Measures | None = None,
        ceiling: RunCeiling = NO_CEILING,
    ) -> Run:
        """Make one rank's run, from a position or the beginning of an epoch (by default the first).

        Args:
            rank: The rank.
            world_size: The number of ranks.
            batch_size: Records per batch; ``None``: single records.
            position: The place to begin at.
            allocate: Allocates the columns of batches; by default the run does.
            budget: Bytes that the run may take, at least :meth:`least_budget`; by default the
                dataset's ``memory_budget``. It changes the speed and never the order.
            measures: The measures to count on; by default the run has its own.
            ceiling: The limits of a feeder, and what it shares among its runs.

        Raises:
            ConfigError: The settings contradict each other.
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        start = self.position(batch_size, rank, world_size, position or Beginning())
        orders = tuple(order.since(start.origin) for order in self._orders)
        plan = RunPlan(
            self.settings,
            orders,
            start,
            self._memory(world_size, budget),
            batch_size,
            self._remainder(world_size, batch_size),
            self._functions,
            self._windows(),
            self._draws,
            self._components,
            self._next_use(orders[0]),
            limits=self._limits(ceiling),
            decoded=self._stores.cache if self._keeps("pictures", "mapped") else None,
            is_inferred=self._is_inferred,
        )
        plan.check()
        shards = Shards(
            self.shards,
            LearnedFacts(self._sizes),
            LearnedFacts(self._etags),
            LearnedFacts(self._encodings),
            indexed=self._indexed,
        )
        shards.entries = self._index.entries if self._index is not None else ()
        if not self._keeps("batches") or self._stores.cache is None:
            return Run(plan, shards, self._stores, allocate, measures, ceiling)
        cache = BatchCache(plan, self._stores.cache, self._versions)
        parts = plan, shards, self._stores, allocate, measures, ceiling
        return CachedRun(*parts, cache=cache)

    def _limits(self, ceiling: RunCeiling) -> DecodeLimits:
        """Return the limits of a batch: those of the settings, and of the feeder."""
        return DecodeLimits(
            min(batch_limit(self.settings), ceiling.max_bytes),
            min(pixel_limit(self.settings), ceiling.max_pixels),
            THREADS,
        )

    def _keeps(self, *kinds: Kept) -> bool:
        """Return whether the settings name a cache of one of these kinds."""
        return self.settings.cache is not None and self.settings.cache.of in kinds

    def position(
        self, batch_size: int | None, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        """Return the position of a rank at which to begin; its order must be that of the dataset.

        Raises:
            ConfigError: The settings contradict each other.
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        fingerprint = self.fingerprint(batch_size, world_size, rank=rank)
        if not isinstance(point, Position):
            return self._start(fingerprint, rank, world_size, point)
        fingerprint.check(point.fingerprint)
        if point.since is None and point.points.size != self._sublanes(point.world_size):
            raise MalformedPosition(
                "the state has another number of components than this stream; load a state that "
                "was saved by it"
            )
        if (point.rank, point.world_size) != (rank, world_size):
            return Position.merge([point], rank=rank, world_size=world_size)
        return point

    def _sublanes(self, world_size: int) -> int:
        """Return the number of sequences of shards that a rank reads side by side."""
        return len(self._orders) * self.lanes // world_size

    def _remainder(self, world_size: int, batch_size: int | None) -> str:
        remainder = self.settings.remainder or ("keep" if world_size == 1 else "drop")
        if world_size > 1 and remainder == "keep":
            raise ConfigError(
                'remainder "keep" gives ranks different last batches; choose "drop" or "pad"'
                + self._costs(world_size, batch_size)
            )
        check_batches(self.settings, batch_size, remainder)
        few = self._index.records if self._index is not None and self._is_counted else self.lanes
        if few < self.lanes and remainder != "keep":
            raise ConfigError(
                f"{self.lanes} lanes share {few} records, so {remainder!r} would leave lanes "
                f"without any; set lanes to {few} at most"
            )
        return remainder

    def _costs(self, world_size: int, batch_size: int | None) -> str:
        """Describe the records that "drop" leaves out and the rows that "pad" adds, if known."""
        drop, pad = (self._counted(way, batch_size, world_size) for way in ("drop", "pad"))
        if drop is None or pad is None or batch_size is None:
            return ""
        return (
            f': of a run\'s {drop.records} records "drop" leaves out {-drop.surplus}, "pad" adds '
            f"{pad.surplus} masked rows"
        )

    def _start(
        self, fingerprint: Fingerprint, rank: int, world_size: int, beginning: Beginning
    ) -> Position:
        if beginning.step:
            return self._seek(fingerprint, rank, world_size, beginning.step)
        epoch = beginning.epoch
        if epoch and self._draws is not None and self.settings.exhausted == "repeat":
            raise ConfigError(
                "an epoch's position is unknown in a mix of components that repeat; load a state"
                " to go on in it, or rewind to its beginning"
            )
        return Position.start(
            fingerprint,
            [
                order.first(lane, epoch)
                for order in self._orders
                for lane in range(rank, self.lanes, world_size)
            ],
            rank=rank,
            world_size=world_size,
            epoch=epoch,
            step=epoch * (self.settings.steps_per_epoch or 0),
        )

    def _seek(self, fingerprint: Fingerprint, rank: int, world_size: int, step: int) -> Position:
        """Return the position before a step, as successive runs would reach it."""
        if self._draws is not None:
            raise ConfigError("the position of a step is unknown in a mix; load a state")
        if self._index is None:
            raise ConfigError(
                "the position of a step is unknown without an index; write one with `streamrec "
                "index` and set index=True, or load a state"
            )
        if not self._is_counted:
            raise ConfigError(
                f"the position of a step is unknown with {uncounted(self.settings)}; load a state"
            )
        batch_size, settings = fingerprint.global_batch, self.settings
        length = self.length(batch_size and batch_size // world_size, world_size)
        runs, begun = divmod(step, length) if length else (0, step)
        run_epoch = runs * (settings.epochs or 0)
        counted = length and settings.steps_per_epoch is None  # then each run begins an epoch
        epoch, first = (run_epoch, step - begun) if counted else (0, 0)
        start = Position.start(
            fingerprint, [], rank=rank, world_size=world_size, epoch=epoch, step=first
        )
        return replace(start, step=step, run_epoch=run_epoch)

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Count each rank's batches (or single records) in a run; ``None``: endless or unknown."""
        settings = self.settings
        if settings.epochs is None:
            return None
        if settings.steps_per_epoch is not None:
            return settings.epochs * settings.steps_per_epoch
        run = self._counted(self._remainder(world_size, batch_size), batch_size, world_size)
        return None if run is None else run.steps

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Count the masked rows of a run's batches; below 0: the records that are left out."""
        run = self._counted(self._remainder(world_size, batch_size), batch_size, world_size)
        return None if run is None else run.surplus

    def _counted(self, remainder: str, batch_size: int | None, world_size: int) -> RecordRun | None:
        """Return the arithmetic of a run of whole epochs; ``None``: its records are not counted."""
        epochs, steps = self.settings.epochs, self.settings.steps_per_epoch
        if not isinstance(self._order, RecordOrder) or not self._is_counted:
            return None
        if epochs is None or steps is not None:
            return None
        lanes = range(0, self.lanes, world_size)
        return RecordRun(self._order, None, lanes, batch_size, 0, 0, epochs, remainder)

    def _windows(self) -> Windows | ChunkWindows | None:
        settings, order = self.settings, self._order
        if not settings.has_windows:
            return None
        total, seed = int(settings.shuffle_window), settings.seed
        open_shards = len(self._orders) if self._draws is None else 1
        windows = Windows(total, self.lanes, seed, settings.shuffle, open_shards)
        if isinstance(order, RecordOrder) and self._is_counted:
            return ChunkWindows(order, windows)
        return windows

    def check_memory(self) -> None:
        """Check that one rank can run at least, where there are as many as lanes.

        Raises:
            ConfigError: Its share of the windows or packs does not fit ``memory_budget``.
        """
        self._memory(self.lanes)

    def least_budget(self, world_size: int) -> int:
        """Return the smallest budget of a rank's run, in bytes."""
        return self._needs(world_size).least

    def _memory(self, world_size: int, budget: int | None = None) -> MemoryPlan:
        total = memory_budget(self.settings) if budget is None else budget
        return self._needs(world_size).divide(total)

    def _needs(self, world_size: int) -> MemoryNeeds:
        settings, lanes = self.settings, self.lanes // world_size
        window = int(settings.shuffle_window) if settings.has_windows else 0
        if window and isinstance(self._order, RecordOrder) and self._is_counted:
            window = max(window, self.lanes * self._order.largest)
        return MemoryNeeds(
            lanes=lanes,
            sublanes=self._sublanes(world_size),
            packs=lanes * settings.pack.held_bytes if settings.pack else 0,
            windows=-(-window // world_size) * len(self._counts),
            near=self._stores.are_local(self.shards),
        )


def _own_names(urls: Sequence[str]) -> list[str]:
    """Return the names that copies have, too; URLs, where only a query tells shards apart."""
    names = [content_name(url) for url in urls]
    return names if len({*names}) == len({*urls}) else list(urls)
