"""The dataset: its shards, its order, and the runs over it, with what they share."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from streamrec.config.machine import batch_limit, pixel_limit
from streamrec.formats.examples.needs import DecodeLimits
from streamrec.pipeline.assembler import THREADS
from streamrec.pipeline.batch.functions import Functions
from streamrec.pipeline.dataset_arithmetic import Arithmetic
from streamrec.pipeline.dataset_identity import (
    Identity,
    check_mapped,
    check_parts,
    check_pictures,
    check_places,
    check_ranks,
)
from streamrec.pipeline.dataset_opening import find, first_features
from streamrec.pipeline.fetch.range_queue import LearnedFacts, Shards
from streamrec.pipeline.run import Run
from streamrec.pipeline.terms.memory_needs import NO_CEILING
from streamrec.pipeline.terms.run_plan import RunPlan
from streamrec.pipeline.tfds_folder import Listed
from streamrec.plan.reading.next_use import NextUse, places_of
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base.protocol import in_thread, let_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.cache_and_audit import Kept
    from streamrec.flow.timings import Timings
    from streamrec.formats.examples.specs import FeatureSpec
    from streamrec.formats.shards.index import Index
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.dataset_opening import Findings
    from streamrec.pipeline.terms.exclusions import Exclusions
    from streamrec.pipeline.terms.memory_needs import Measures, RunCeiling
    from streamrec.plan.order.record_order import Order
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.record_run import RecordRun
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.stores.base.protocol import BeforeRequest, ObjectInfo
    from streamrec.stores.open import Stores
    from streamrec.values.record_rows import RecordLengths


class Dataset:
    """A dataset, opened with :meth:`open` and closed with :meth:`aclose`.

    Args:
        settings: The dataset's settings.
        stores: The stores of the shards; closed with the dataset.
        objects: The shards in their order, as often as they are named; in a mix, one component
            after the other.
        index: The index of the shards; ``None``: the order is by shard.
        listed: The shards of each component of a mix, with the records that splits name.
        is_inferred: True if the features follow from some of the records.
        excluded: The records that are never delivered.
        lengths: The lengths of all records, by which rows are dealt; ``None``: they are not.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        stores: Stores,
        objects: Sequence[ObjectInfo],
        *,
        index: Index | None = None,
        listed: Sequence[Listed] = (),
        is_inferred: bool = False,
        excluded: Exclusions | None = None,
        lengths: RecordLengths | None = None,
    ) -> None:
        self._listed = listed or [Listed(objects)]
        parts = [own for one in self._listed for own in one.parts]
        check_pictures(settings)
        check_parts(settings, parts)
        functions = Functions.of(settings)
        check_mapped(settings, functions)
        self._settings = settings
        self._stores = stores
        self._index = index
        self.objects = objects
        self.shards = tuple(info.url for info in objects)
        self._identity = Identity(
            settings,
            functions,
            shards=self.shards,
            index=index,
            counts=[len(one.objects) for one in self._listed],
            parts=parts,
        )
        self.lanes = self._identity.lanes
        self._arithmetic = Arithmetic(
            settings, self._identity, index, near=stores.are_local(settings.urls)
        )
        self.excluded = excluded
        self.components = self._identity.components
        """The components of a mix; ``None``: nothing is mixed."""
        self._functions, self._is_inferred = functions, is_inferred
        self.lengths = lengths
        """The lengths of all records, by which rows are dealt; ``None``: they are not."""

    def __repr__(self) -> str:
        return f"<Dataset of {len(self.shards)} shards, {self.lanes} lanes>"

    @classmethod
    async def open(
        cls,
        settings: DatasetSettings,
        objects: Sequence[ObjectInfo] | None = None,
        before_request: BeforeRequest = let_pass,
        *,
        is_read: bool = True,
    ) -> Self:
        """Open a dataset: find its shards and read its index.

        Args:
            settings: The dataset's settings.
            objects: The shards, if the caller has listed them; not for a mix.
            before_request: Called before each request to a store, as long as the dataset is open.
            is_read: False: only its order is asked for, so nothing is made ready for a run.

        Raises:
            ObjectNotFound: A pattern matches no shard.
            MalformedExample: Features cannot be inferred, since the records are not Examples.
            ConfigError: A URL's scheme is not known, or the storage options are wrong.
            StoreError: The listing failed or stalled.
        """
        findings = await find(settings, objects, before_request)
        try:
            # A million shards take seconds, and pictures import their libraries.
            return await in_thread(partial(cls._of, findings, is_read=is_read))
        except BaseException:
            await findings.stores.aclose()
            raise

    @classmethod
    def _of(cls, findings: Findings, *, is_read: bool) -> Self:
        dataset = cls(**vars(findings))
        if is_read:
            _ = dataset._runs
            # Last, when all that may be refused has been: to permute many shards takes long.
            dataset._identity.draw()
        return dataset

    @cached_property
    def _runs(self) -> Runs:
        """The maker of runs, made with the dataset unless only its order is asked for."""
        return Runs(
            self._settings,
            self._functions,
            identity=self._identity,
            stores=self._stores,
            objects=self.objects,
            index=self._index,
            is_inferred=self._is_inferred,
            excluded=self.excluded,
            lengths=self.lengths,
        )

    async def aclose(self) -> None:
        """Close the connections to the stores."""
        await self._stores.aclose()

    async def records_with(self, feature: str, value: str | int) -> list[tuple[int, int]]:
        """Find the shard and the number of each record with a value, by the index of this key.

        Raises:
            StreamrecError: As of :func:`.excluded_keys.records_with`.
        """
        from streamrec.pipeline.excluded_keys import records_with

        found = await records_with(
            self._settings, self._stores, self._index, self._listed, feature, [value]
        )
        return [(shard, number) for shard, own in found.items() for number in own.tolist()]

    @property
    def settings(self) -> DatasetSettings:
        """The settings, from which the order was derived: they never change."""
        return self._settings

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all shards; ``None``: the store did not say them all."""
        return self._runs.stored_bytes

    @property
    def timings(self) -> Timings:
        """The times of the listings that found the shards; those of reads are the runs'."""
        return self._stores.timings

    async def infer_features(self) -> dict[str, FeatureSpec]:
        """Return specs that fit the first records; those of pictures decode them.

        Raises:
            StreamrecError: As of :func:`first_features`.
        """
        return await first_features(
            self.settings, self._stores, self.objects, self._identity.counts
        )

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Fingerprint:
        """Return the facts that determine the order of a stream over this dataset.

        Raises:
            ConfigError: The settings allow no such stream. A feeder can thus refuse it early.
        """
        # All that may be refused is refused here: who asks for it has not begun to read.
        check_ranks(self.settings, self.lanes, rank, world_size)
        self._arithmetic.remainder(world_size, batch_size)
        self._arithmetic.memory(world_size)
        check_places(self.settings, batch_size)
        return self._identity.fingerprint(batch_size, world_size)

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Count each rank's batches (or single records) in a run; ``None``: endless or unknown."""
        return self._arithmetic.length(batch_size, world_size)

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Count the masked rows of a run's batches; below 0: the records that are left out."""
        return self._arithmetic.surplus(batch_size, world_size)

    def check_memory(self) -> None:
        """Check that one rank can run at least, where there are as many as lanes.

        Raises:
            ConfigError: Its share of the windows or packs does not fit ``memory_budget``.
        """
        self._arithmetic.memory(self.lanes)

    def least_budget(self, world_size: int) -> int:
        """Return the smallest budget of a rank's run, in bytes."""
        return self._arithmetic.least_budget(world_size)

    def position(
        self, batch_size: int | None, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        """Return the position of a rank at which to begin; its order must be that of the dataset.

        Raises:
            ConfigError: The settings contradict each other.
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        fingerprint = self.fingerprint(batch_size, world_size, rank=rank)
        return self._arithmetic.position(fingerprint, rank, world_size, point)

    def record_run(self, start: Position, batch_size: int | None) -> RecordRun:
        """Return the arithmetic of the run at a position of :meth:`position`, by record."""
        return self._arithmetic.record_run(start, batch_size)

    def memory(self, world_size: int, budget: int | None = None) -> MemoryPlan:
        """Divide the budget of a rank's run; arguments as of :meth:`run`.

        Raises:
            ConfigError: It is too small for the settings.
        """
        return self._arithmetic.memory(world_size, budget)

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
        plan = self.plan(start, batch_size, self.memory(world_size, budget), ceiling=ceiling)
        return self._runs.run(plan, allocate=allocate, measures=measures, ceiling=ceiling)

    def plan(
        self,
        start: Position,
        batch_size: int | None,
        memory: MemoryPlan,
        *,
        ceiling: RunCeiling = NO_CEILING,
    ) -> RunPlan:
        """Plan a rank's run from a position of :meth:`position`; arguments as of :meth:`run`.

        Raises:
            ConfigError: The settings contradict each other.
            StateError: The position contradicts itself.
        """
        return self._runs.plan(
            start,
            memory=memory,
            batch_size=batch_size,
            remainder=self._arithmetic.remainder(start.world_size, batch_size),
            ceiling=ceiling,
        )


class Runs:
    """The maker of a dataset's runs: what is known of the shards, and the cache of what is decoded.

    Args:
        settings: The dataset's settings.
        functions: The user's functions.
        identity: The orders of the records.
        stores: The stores of the shards.
        objects: The shards in their order.
        index: The index of the shards; ``None``: the order is by shard.
        is_inferred: True if the features follow from some of the records.
        excluded: The records that are never delivered; ``None``: no list was named.
        lengths: The lengths of all records, by which rows are dealt; ``None``: they are not.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        functions: Functions,
        *,
        identity: Identity,
        stores: Stores,
        objects: Sequence[ObjectInfo],
        index: Index | None,
        is_inferred: bool,
        excluded: Exclusions | None,
        lengths: RecordLengths | None,
    ) -> None:
        self._settings = settings
        self._functions = functions
        self._identity = identity
        self._stores = stores
        self._objects = objects
        self._is_inferred = is_inferred
        self._excluded, self._lengths = excluded, lengths
        self._sizes = {i: info.size for i, info in enumerate(objects) if info.size is not None}
        self._etags = {i: info.etag for i, info in enumerate(objects) if info.etag is not None}
        encodings = ((i, info.encoding) for i, info in enumerate(objects))
        self._encodings = {i: encoding for i, encoding in encodings if encoding is not None}
        self._versions: list[str] = []
        if self._keeps("batches") and stores.cache is not None:
            from streamrec.pipeline.batch_cache import versions_of

            self._versions = versions_of(objects, stores.cache)
        self._entries = () if index is None else index.entries
        self._unlisted: Container[int] = () if index is None else self._add_sizes_of(index)
        self._places = places_of(identity.shards) if self._forecasts else {}
        if self._keeps("pictures", "mapped"):
            from streamrec.pipeline.batch.record_caches import programs

            programs()  # it looks for what is installed

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all shards; ``None``: neither the store nor an index said them all."""
        is_known = len(self._sizes) == len(self._objects)
        return sum(self._sizes.values()) if is_known else None

    def plan(
        self,
        start: Position,
        *,
        memory: MemoryPlan,
        batch_size: int | None,
        remainder: str,
        ceiling: RunCeiling,
    ) -> RunPlan:
        """Plan a run from a position on; arguments as of :meth:`.dataset.Dataset.run`.

        Raises:
            StateError: The position contradicts itself.
        """
        identity, cache = self._identity, self._stores.cache
        # Turns are counted from where all lanes began, which may be a later epoch than the first.
        orders = tuple(order.since(start.origin) for order in identity.orders)
        plan = RunPlan(
            settings=self._settings,
            orders=orders,
            position=start,
            memory=memory,
            batch_size=batch_size,
            remainder=remainder,
            functions=self._functions,
            windows=identity.windows(),
            draws=identity.draws,
            changes=identity.changes(start.fingerprint),
            components=identity.components,
            next_use=self._next_use(orders[0]),
            limits=self._limits(ceiling),
            decoded=cache if self._keeps("pictures", "mapped") else None,
            lengths=self._lengths,
            is_inferred=self._is_inferred,
        )
        plan.check()
        return plan

    def run(
        self,
        plan: RunPlan,
        *,
        allocate: Allocate | None,
        measures: Measures | None,
        ceiling: RunCeiling,
    ) -> Run:
        """Make a run of a plan; arguments as of :meth:`.dataset.Dataset.run`."""
        cache = self._stores.cache
        make: Callable[..., Run] = Run
        if self._keeps("batches") and cache is not None:
            from streamrec.pipeline.batch_cache import BatchCache, CachedRun

            make = partial(CachedRun, cache=BatchCache(plan, cache, self._versions))
        return make(
            plan,
            self._shards(),
            self._stores,
            allocate=allocate,
            measures=measures,
            ceiling=ceiling,
        )

    def _shards(self) -> Shards:
        shards = Shards(
            self._identity.shards,
            LearnedFacts(self._sizes),
            LearnedFacts(self._etags),
            LearnedFacts(self._encodings),
            unlisted=self._unlisted,
        )
        shards.entries, shards.excluded = self._entries, self._excluded
        return shards

    def _limits(self, ceiling: RunCeiling) -> DecodeLimits:
        """Return the limits of a batch: those of the settings, and of the feeder."""
        return DecodeLimits(
            min(batch_limit(self._settings), ceiling.max_bytes),
            min(pixel_limit(self._settings), ceiling.max_pixels),
            THREADS,
        )

    def _next_use(self, order: Order) -> NextUse | None:
        """Let the cache know what a run reads; a mix's components have epochs of their own."""
        cache = self._stores.cache
        if cache is None or not self._forecasts:
            return None
        forecast = NextUse(order, self._places)
        cache.expect(forecast, self._objects)
        return forecast

    @property
    def _forecasts(self) -> bool:
        """True if a cache may know what a run reads; without one, the user has no folder for it."""
        has_one = self._stores.cache is not None and not self._keeps("batches")
        return has_one and self._identity.draws is None

    def _keeps(self, *kinds: Kept) -> bool:
        """Return whether the settings name a cache of one of these kinds."""
        return self._settings.cache is not None and self._settings.cache.of in kinds

    def _add_sizes_of(self, index: Index) -> Container[int]:
        """Take sizes from the index; return the shards whose listing lacks a size or version."""
        shards = range(len(index.entries))
        unlisted = {*shards} - (self._sizes.keys() & self._etags.keys())
        self._sizes = dict(enumerate(index.columns.sizes.tolist())) | self._sizes
        # Mostly all or none: a set of a million takes as much memory as their names.
        return shards if len(unlisted) == len(shards) else unlisted
