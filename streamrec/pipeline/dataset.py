"""A dataset: its shards, its order, and the runs over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from streamrec import config
from streamrec.errors import ConfigError
from streamrec.formats.descriptions import describe
from streamrec.formats.features import infer_features
from streamrec.pipeline.feeds import Shards
from streamrec.pipeline.functions import Functions
from streamrec.pipeline.run import Run, RunPlan
from streamrec.pipeline.sample import first_records
from streamrec.plan.order import ShardOrder
from streamrec.plan.place import Beginning
from streamrec.plan.position import Fingerprint, Position, names_digest
from streamrec.plan.ranges import MemoryPlan
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.plan.place import Place
    from streamrec.stores.base import ObjectInfo

__all__ = ["Dataset"]


class Dataset:
    """Open it with :meth:`open`, close it with :meth:`aclose`.

    Args:
        settings: What is read, and how.
        stores: Serve the shards; closed with the dataset.
        objects: The shards, sorted by URL.
    """

    def __init__(
        self, settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo]
    ) -> None:
        self.settings = settings
        self.shards = tuple(found.url for found in objects)
        lanes = settings.lanes
        self.lanes = min(config.DEFAULT_LANES, len(objects)) if lanes == "auto" else lanes
        self._functions = Functions.of(settings)
        self._stores = stores
        self._sizes = {i: found.size for i, found in enumerate(objects) if found.size is not None}
        self._etags = {i: found.etag for i, found in enumerate(objects) if found.etag is not None}
        encodings = ((i, found.encoding) for i, found in enumerate(objects))
        self._encodings = {i: encoding for i, encoding in encodings if encoding is not None}
        seed = settings.seed if settings.shuffle else 0
        self._order = ShardOrder(len(objects), self.lanes, settings.shuffle, seed)

    def __repr__(self) -> str:
        return f"<Dataset of {len(self.shards)} shards, {self.lanes} lanes>"

    @classmethod
    async def open(cls, settings: DatasetSettings) -> Self:
        """Find the shards.

        Raises:
            ObjectNotFound: A pattern matches no shard.
            MalformedExample: Features are to be inferred, and the records are no Examples.
            ConfigError: A URL's scheme is not known, or the storage options are wrong.
            StoreError: The listing failed.
        """
        stores = Stores(settings.storage_options)
        try:
            objects = await stores.resolve(settings.source)
            if settings.features == "infer":
                settings = await _with_inferred_features(settings, stores, objects)
            return cls(settings, stores, objects)
        except BaseException:
            await stores.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connections to the stores."""
        await self._stores.aclose()

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Fingerprint:
        """What identifies the order of a stream over this dataset.

        Raises:
            ConfigError: There can be no such stream; so it is refused before it is subscribed to.
        """
        self._check_ranks(rank, world_size)
        self._remainder(world_size, batch_size)
        self._memory(world_size)
        settings = self.settings
        return Fingerprint(
            names=names_digest(self.shards),
            shards=len(self.shards),
            order="shard" if settings.ordered else "shard, as it comes",
            lanes=self.lanes,
            shuffle=settings.shuffle,
            seed=settings.seed if settings.shuffle else 0,
            shuffle_window=int(settings.shuffle_window) if settings.shuffle else 0,
            global_batch=batch_size * world_size if batch_size else None,
            stages=self._stages(),
        )

    def _stages(self) -> str:
        pack = self.settings.pack
        return ", ".join(filter(None, [self._functions.in_lanes, str(pack) if pack else ""]))

    def run(
        self, *, rank: int, world_size: int, batch_size: int | None, position: Place | None
    ) -> Run:
        """One rank's run, from a position or from the beginning of an epoch: of the first, if none.

        Raises:
            ConfigError: The settings contradict each other.
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        remainder = self._remainder(world_size, batch_size)
        fingerprint = self.fingerprint(batch_size, world_size, rank=rank)
        if not isinstance(position, Position):
            position = self._start(fingerprint, rank, world_size, position or Beginning())
        fingerprint.check(position.fingerprint)
        if (position.rank, position.world_size) != (rank, world_size):
            position = Position.merge([position], rank=rank, world_size=world_size)
        memory = self._memory(world_size)
        plan = RunPlan(
            self.settings, self._order, position, memory, batch_size, remainder, self._functions
        )
        shards = Shards(self.shards, dict(self._sizes), dict(self._etags), self._encodings.copy())
        return Run(plan, shards, self._stores)

    def _check_ranks(self, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not one of 0 to {world_size - 1}")
        if self.lanes % world_size:
            serve = ", ".join(str(n) for n in range(1, self.lanes + 1) if self.lanes % n == 0)
            raise ConfigError(
                f"world_size {world_size} does not divide the {self.lanes} lanes; these do: {serve}"
                " (or set lanes to a multiple of world_size: it determines the order)"
            )
        settings = self.settings
        also = "" if settings.filter is None else "(and what a filter leaves of them) "
        if world_size > 1 and settings.epochs is not None and settings.steps_per_epoch is None:
            raise ConfigError(
                f"shards {also}hold different numbers of records, so {world_size} ranks would end "
                "at different steps and wait for each other for ever; set steps_per_epoch to the "
                "number of batches every rank is to get, or epochs to None"
            )

    def _remainder(self, world_size: int, batch_size: int | None) -> str:
        remainder = self.settings.remainder or ("keep" if world_size == 1 else "drop")
        if world_size > 1 and remainder == "keep":
            raise ConfigError(
                'remainder "keep" gives ranks different last batches; choose "drop" or "pad"'
            )
        if batch_size is None and not self.settings.ordered:
            raise ConfigError("ordered=False gives whole batches as they come; set batch_size")
        if batch_size is None and remainder == "pad":
            raise ConfigError('remainder "pad" fills up batches; set batch_size')
        if batch_size is None and self.settings.transform is not None:
            raise ConfigError("transform takes whole batches; set batch_size, or use map")
        return remainder

    def _start(
        self, fingerprint: Fingerprint, rank: int, world_size: int, beginning: Beginning
    ) -> Position:
        epoch = beginning.epoch
        return Position.start(
            fingerprint,
            [self._order.first(lane, epoch) for lane in range(rank, self.lanes, world_size)],
            rank=rank,
            world_size=world_size,
            epoch=epoch,
            step=epoch * (self.settings.steps_per_epoch or 0),
        )

    def _memory(self, world_size: int) -> MemoryPlan:
        settings = self.settings
        total, lanes = config.memory_budget(settings), self.lanes // world_size
        packs = lanes * settings.pack.held_bytes if settings.pack else 0
        if packs > total // 2:
            raise ConfigError(
                f"the packs that {lanes} lanes fill take {packs >> 20} MiB, more than half of "
                f"memory_budget ({total >> 20} MiB); set it to more, or lanes or pack.bins to less"
            )
        window = int(settings.shuffle_window) if settings.shuffle else 0
        return MemoryPlan.divide(
            total - packs,
            lanes=lanes,
            windows=-(-window // world_size),
            near=self._stores.are_near(self.shards),
        )


async def _with_inferred_features(
    settings: DatasetSettings, stores: Stores, objects: Sequence[ObjectInfo]
) -> DatasetSettings:
    urls = (found.url for found in objects)
    records = await first_records(stores, urls, compression=settings.compression)
    if not records:
        raise ConfigError("no features can be inferred: no shard holds a record")
    return settings.model_copy(update={"features": describe(infer_features(records))})
