"""The identity of a dataset: the orders of its records, and all that determines them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.pipeline.batch.origin import Components
from streamrec.pipeline.dataset_checks import uncounting_stage
from streamrec.plan.order.mixture import component_seed, draws_of, text_of
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.shard_order import ShardOrder, open_at_once
from streamrec.plan.order.window import Windows
from streamrec.plan.state.fingerprint import (
    AS_IT_COMES,
    AS_KEPT,
    COUNTED,
    WINDOWED,
    Fingerprint,
    by_shard,
    digest,
    names_digest,
)
from streamrec.stores.base.source_text import content_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.index import Index
    from streamrec.pipeline.batch.functions import Functions
    from streamrec.plan.order.mixture import Draws
    from streamrec.plan.order.record_order import Order


class Identity:
    """The orders of a dataset, for all ranks and runs alike, and their fingerprint.

    Args:
        settings: The dataset's settings.
        functions: The user's functions.
        shards: The shards' URLs in their order; in a mix, one component after the other.
        index: The index of the shards; ``None``: the order is by shard.
        counts: The number of shards of each component of a mix; else that of all.
    """

    def __init__(
        self,
        settings: DatasetSettings,
        functions: Functions,
        *,
        shards: Sequence[str],
        index: Index | None,
        counts: Sequence[int],
    ) -> None:
        self._settings = settings
        self._functions = functions
        self.shards = shards
        """The shards' URLs in their order; in a mix, one component after the other."""
        self._index = index
        self.counts = counts
        """The number of shards of each component of a mix; else that of all."""
        # Each lane needs a record, or by shard one shard of each component.
        most = index.records if index else min(counts)
        # From the data alone: lanes that followed from the ranks or the machine would change the
        # order.
        auto = min(DEFAULT_LANES, most)
        self.lanes = auto if settings.lanes == "auto" else settings.lanes
        """The lanes of all ranks."""
        self.kind = by_shard(1)
        """The kind of order, as a fingerprint names it."""
        self._first_shards = tuple(accumulate(counts[:-1], initial=0))
        self.orders = self._make_orders()
        """An order for each component of a mix or each open shard of a lane; else a single one."""
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
        return self._index is not None and not uncounting_stage(self._settings)

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
        total, seed = int(settings.shuffle_window), settings.seed
        open_shards = len(self.orders) if self.draws is None else 1
        windows = Windows(
            total=total,
            lanes=self.lanes,
            seed=seed,
            shuffles=settings.shuffle,
            open_shards=open_shards,
        )
        return windows if self.record_order is None else ChunkWindows(self.record_order, windows)

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

    def _make_orders(self) -> tuple[Order, ...]:
        settings = self._settings
        # An order that is not shuffled is the same for every seed.
        seed = settings.seed if settings.shuffle else 0
        if self._index is not None:
            return (self._order_by(self._index, seed),)
        seeds = [seed] * len(self.counts)
        if settings.weights is not None and settings.shuffle:
            # Else components of equal length would be permuted alike.
            seeds = [component_seed(seed, number) for number in range(len(seeds))]
        orders = tuple(
            ShardOrder(
                shards=count,
                lanes=self.lanes,
                shuffle=settings.shuffle,
                seed=own_seed,
                first_shard=first,
            )
            for count, own_seed, first in zip(self.counts, seeds, self._first_shards, strict=True)
        )
        if settings.weights is not None or not settings.shuffle:
            return orders
        open_shards = open_at_once(len(self.shards), self.lanes, int(settings.shuffle_window))
        self.kind = by_shard(open_shards)
        return orders[0].divide(open_shards)

    def _order_by(self, index: Index, seed: int) -> RecordOrder:
        settings = self._settings
        counted = WINDOWED if settings.has_windows else COUNTED
        self.kind = f"{counted if self.is_counted else AS_KEPT}{index.digest()}"
        # Chunks that follow each other are read as one extent, except where a state counts
        # extents, or where the search for the end of damage must stop at the chunk's end.
        joins = self.is_counted and settings.on_corrupt == "raise" and not settings.has_windows
        chunks, origin = index.chunks(), None if self.is_counted else 0
        return RecordOrder(
            table=chunks,
            lanes=self.lanes,
            shuffle=settings.shuffle,
            seed=seed,
            joins=joins,
            origin=origin,
        )

    @property
    def _needs_seed(self) -> bool:
        """True if the records, or what is made of them before they are batched, depend on it."""
        draws = self.draws is not None or self._functions.draw_in_lanes
        return self._settings.has_windows or draws

    def _digest_of_names(self) -> str:
        """Digest the shards' names; in a mix, those of each component."""
        parts = zip(self._first_shards, self.counts, strict=True)
        shards = [self.shards[first : first + count] for first, count in parts]
        digests = [names_digest(_own_names(urls)) for urls in shards]
        return digests[0] if self.draws is None else digest(" ".join(digests))

    def _stages(self) -> str:
        pack, buckets = self._settings.pack, self._settings.length_buckets
        named = str(pack) if pack else f"{buckets} length buckets" if buckets else ""
        return ", ".join(filter(None, [self._functions.in_lanes, named]))


def _own_names(urls: Sequence[str]) -> list[str]:
    """Return the names that copies have, too; URLs, where only a query tells shards apart."""
    names = [content_name(url) for url in urls]
    return names if len({*names}) == len({*urls}) else list(urls)
