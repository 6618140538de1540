"""The runs over a dataset: what they share, and how one is made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from streamrec.config.machine import batch_limit, pixel_limit
from streamrec.formats.examples.needs import DecodeLimits
from streamrec.pipeline.assembler import THREADS
from streamrec.pipeline.fetch.range_queue import LearnedFacts, Shards
from streamrec.pipeline.run import Run
from streamrec.pipeline.terms.run_plan import RunPlan
from streamrec.plan.reading.next_use import NextUse, places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.cache_and_audit import Kept
    from streamrec.formats.shards.index import Index
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.functions import Functions
    from streamrec.pipeline.dataset_identity import Identity
    from streamrec.pipeline.terms.exclusions import Exclusions
    from streamrec.pipeline.terms.memory_needs import Measures, RunCeiling
    from streamrec.plan.order.record_order import Order
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.plan.state.position import Position
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.stores.open import Stores


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
    ) -> None:
        self._settings = settings
        self._functions = functions
        self._identity = identity
        self._stores = stores
        self._objects = objects
        self._is_inferred = is_inferred
        self._excluded = excluded
        self._sizes = {i: info.size for i, info in enumerate(objects) if info.size is not None}
        self._etags = {i: info.etag for i, info in enumerate(objects) if info.etag is not None}
        encodings = ((i, info.encoding) for i, info in enumerate(objects))
        self._encodings = {i: encoding for i, encoding in encodings if encoding is not None}
        self._versions: list[str] = []
        if self._keeps("batches") and stores.cache is not None:
            from streamrec.pipeline.batch_cache import versions_of

            self._versions = versions_of(objects, stores.cache)
        self._entries = () if index is None else index.entries
        self._indexed: dict[int, tuple[int, str | None]] = {}
        self._places = places_of(identity.shards) if self._forecasts else {}
        if self._keeps("pictures", "mapped"):
            from streamrec.pipeline.batch.record_caches import programs

            programs()  # it looks for what is installed
        self._add_facts_of_the_index()

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
            indexed=self._indexed,
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

    def _add_facts_of_the_index(self) -> None:
        for shard, entry in enumerate(self._entries):
            if shard not in self._sizes or shard not in self._etags:
                self._indexed[shard] = entry.size, entry.etag
            self._sizes.setdefault(shard, entry.size)
