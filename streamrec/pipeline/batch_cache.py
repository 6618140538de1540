"""The cache of a run's decoded batches: their keys, their form in it, and the run that reads it.

A batch is one piece: a frame of the feeder's protocol without its last four bytes, since the shelf
has a checksum of its own. The end of a run is a frame without content.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamrec.errors import ConfigError, RemoteProtocolError
from streamrec.flow.channel import Channel, EndOfStream
from streamrec.flow.cleanup import end, finish
from streamrec.flow.pool import BatchMemory
from streamrec.masking import masked
from streamrec.pipeline.assembler import THREADS, Decoding
from streamrec.pipeline.batch import payload
from streamrec.pipeline.batch.decoder import Work
from streamrec.pipeline.run import Run
from streamrec.pipeline.terms.memory_needs import COUNTERS, NO_CEILING, most_waiting
from streamrec.stores.base.protocol import in_thread, is_strong
from streamrec.stores.cache.shelves import Piece
from streamrec.values.columns import size_of
from streamrec.version import __version__
from streamrec.wire.frame import HEADER, TRAILER, Header
from streamrec.wire.messages import BatchMessage, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.fetch.range_downloader import OpensStores
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.terms.memory_needs import Measures, RunCeiling
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.state.position import Position
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.stores.cache.piece_cache import PieceCache
    from streamrec.values.columns import ByteArray


class CachedRun(Run):
    """A run with a cache of its batches.

    As long as the cache has the next batch, no store is asked. From the first one that it lacks, an
    inner run reads on to the end, and each of its batches is kept before it is delivered: whoever
    takes it may change it. The transform is called behind the cache, for each delivery.

    The arguments are those of a run, and the cache of its batches.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        stores: OpensStores,
        *,
        allocate: Allocate | None = None,
        measures: Measures | None = None,
        ceiling: RunCeiling = NO_CEILING,
        cache: BatchCache,
    ) -> None:
        # A transform may keep the columns that it gets.
        allocate = None if plan.functions.transform else allocate
        super().__init__(
            plan, shards, stores, allocate=allocate, measures=measures, ceiling=ceiling
        )
        self._cache = cache
        self._sent = plan.position
        self._cached = 0
        """The number of batches that came from the cache, those that wait included."""
        self._inner: Run | None = None

    async def __aenter__(self) -> Self:
        settings, behind = self._plan.settings, self._plan_behind()
        most = most_waiting(settings.prefetch)
        self._channel = Channel[Decoding](self._plan.memory.waiting - behind.memory.waiting, most)
        self._threads = self._ceiling.threads("streamrec-deliver", THREADS)
        await self._ceiling.start(self._threads, THREADS)
        self._task = asyncio.create_task(self._fill(), name="streamrec-cached-run")
        return self

    async def _stop(self) -> None:
        assert self._task is not None
        await end(self._task)

    async def _close(self) -> None:
        await self._stop()
        self._next = None
        await self._end_threads(self._channel.take_all().clear)
        self._cache.close()

    async def take(self) -> Batch:
        """Return the next batch; see :class:`~streamrec.pipeline.run.Run`."""
        try:
            self._next = self._next or await self._channel.receive()
        except EndOfStream:
            self.position = self._plan.next_run(self.position)
            raise
        batch = await self._wait_for(self._next)
        self._next = None
        self._count(batch)
        return batch

    def interrupt(self) -> None:
        """Decode no further; see :class:`~streamrec.pipeline.run.Run`."""
        if self._inner is not None:
            self._inner.interrupt()

    async def halt(self) -> Position | None:
        """Stop reading; see :class:`~streamrec.pipeline.run.Run`."""
        if not self._channel.is_closed:
            await finish(self._stop())
        # It may have come to its end before it could be stopped.
        return None if self._channel.is_closed else self._sent

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and current sizes."""
        return {
            **dict.fromkeys(COUNTERS, 0),
            **(self._inner.statistics() if self._inner else {}),
            **self._counts(),
            "batches_ready": len(self._channel),
            "cached_batches": min(self._batches, self._cached),  # they come before all others
        }

    def _plan_behind(self) -> RunPlan:
        """Return the plan of the inner run; its batches wait in one half of the reserve."""
        memory = self._plan.memory
        half = memory.reserve // 2
        return replace(
            self._plan,
            position=self._sent,
            memory=replace(memory, total=memory.total - half, reserve=memory.reserve - half),
            functions=self._plan.functions._replace(transform=None),
        )

    async def _fill(self) -> None:
        """Fill the channel, and close it at the run's end or with the cause of a failure."""
        failure = None
        try:
            await self._send_cached()
            await self._send_read()
        except EndOfStream:
            pass
        except Exception as error:  # noqa: BLE001 - whoever receives raises it
            failure = error
        await self._channel.close(failure)

    async def _send_cached(self) -> None:
        """Send batches as long as the cache has them.

        Raises:
            EndOfStream: The run has ended.
        """
        end_step = self._plan.end_step
        while end_step is None or self._sent.step < end_step:
            self.measures.waits.produce("cache")
            batch = await self._in_thread(self._cache.load)
            self.measures.waits.produce("order")
            if batch is None:
                return
            self._cached += 1
            await self._send(batch, self._transform, copies=1)
        raise EndOfStream

    async def _send_read(self) -> None:
        """Read on, and keep what comes.

        Raises:
            EndOfStream: The run has ended.
        """
        plan = self._plan_behind()
        plan.check()
        inner = Run(
            plan,
            self._shards,
            self._stores,
            allocate=self._allocate,
            measures=self.measures,
            ceiling=self._ceiling,
        )
        async with inner as self._inner:
            while True:
                try:
                    batch = await self._inner.take()
                except EndOfStream:
                    if plan.end_step is None:  # else it depends on the step, and is known
                        await self._in_thread(self._cache.keep_end)
                    raise
                # The batch and its encoded form for the cache are held at the same time.
                await self._send(batch, self._keep_and_transform, copies=2)

    async def _in_thread(self, call: Callable[[Position], Batch | None]) -> Batch | None:
        return await in_thread(call, self._sent, executor=self._cache.threads)

    async def _send(
        self, batch: Batch, make: Callable[[Batch, Position, Work], Batch], *, copies: int
    ) -> None:
        size = copies * sum(map(size_of, batch.columns.values()))
        await self._channel.wait_for_room(size)
        work = Work(self.measures.waits)
        making = self._threads.submit(work.run, make, batch, self._sent)
        await self._channel.send(Decoding(making, 0, work), size)
        self._sent = batch.next_position

    # -- in threads --------------------------------------------------------------------------------

    def _keep_and_transform(self, batch: Batch, before: Position, work: Work) -> Batch:
        # First, since the transform may change the batch.
        self._cache.keep(batch, before)
        return self._transform(batch, before, work)

    def _transform(self, batch: Batch, _before: Position, work: Work) -> Batch:
        transform = self._plan.functions.transform
        if transform is None:
            return batch
        work.note_transform()
        columns = transform.change(batch, self._shards.urls.__getitem__)
        return replace(batch, columns=columns)


WITHOUT_EFFECT = frozenset(
    {
        # The shards are in a key by their versions, and what is resolved of the others as it is.
        *("source", "index", "lanes", "batch_size", "remainder"),
        # The end of the run is told by its epoch.
        *("epochs", "steps_per_epoch"),
        *("memory_budget", "max_record_bytes", "max_bytes", "max_pixels"),
        *("max_concurrency", "fetch_processes", "prefetch", "stall_timeout"),
        *("transform", "quarantine", "cache", "storage_options"),
    }
)
"""The settings that are in no key, as they do not change a batch or are in it in another form."""


class BatchKeys:
    """The keys of a run's batches.

    Args:
        plan: The plan of the run.
        versions: The keys of the shards' versions, in the shards' order.
    """

    def __init__(self, plan: RunPlan, versions: Sequence[str]) -> None:
        self._stream = _digest_of(plan, versions)
        self._epochs = _epochs_since_like(plan)
        self._end = None if plan.end_epoch is None else plan.end_epoch - self._epochs
        self._extents = _first_extents(plan, self._epochs) - _first_extents(plan, 0)

    def __repr__(self) -> str:
        return f"<BatchKeys, {self._epochs} epochs later>"

    def key(self, before: Position) -> str:
        """Return the key of the batch after a position: 32 hexadecimal digits."""
        position = self._earlier(before)
        numbers = json.dumps([self._end, position.step, position.since, position.origin])
        parts = self._stream, numbers.encode(), position.rows.tobytes()
        return blake2b(b"\n".join(parts), digest_size=16).hexdigest()

    def normalize(self, batch: Batch) -> Batch:
        """Return a batch as it is kept: with the position and epoch of the earliest one like it."""
        position = self._earlier(batch.next_position)
        return replace(batch, epoch=batch.epoch - self._epochs, next_position=position)

    def restore(self, batch: Batch, before: Position) -> Batch:
        """Return a kept batch as the one after a position."""
        position_then = batch.next_position
        position = replace(
            before,
            step=before.step + 1,
            epoch=position_then.epoch + self._epochs,
            lanes=self._move(position_then.lanes, 1),
            sizes=position_then.sizes,
            sources=position_then.sources,
        )
        return replace(batch, epoch=batch.epoch + self._epochs, next_position=position)

    def _earlier(self, position: Position) -> Position:
        """Return the position that stands for all of those with equal batches after them."""
        since, step = None, 0
        if position.since is not None:
            since = position.since[0] - self._epochs, 0
            step = position.step - position.since[1]
        return replace(
            position,
            step=step,
            since=since,
            run_epoch=since[0] if since else 0,
            epoch=position.epoch - self._epochs,
            lanes=self._move(position.lanes, -1),
            origin=position.origin if position.since else position.origin - self._epochs,
            ends="",
        )

    def _move(self, lanes: Structured, direction: int) -> Structured:
        if not self._epochs or not len(lanes):
            return lanes
        moved = lanes.copy()
        moved["extent"] += direction * self._extents
        return moved


def _digest_of(plan: RunPlan, versions: Sequence[str]) -> bytes:
    """Digest everything but the position: shards, order, settings, rank, and the release."""
    position = plan.position
    named = {
        # Another release may decode the same records to other columns.
        "version": __version__,
        "fingerprint": position.fingerprint.to_dict(),
        "rank": [position.rank, position.world_size, plan.batch_size, plan.remainder],
        "settings": plan.settings.model_dump(
            mode="json", exclude={*WITHOUT_EFFECT}, warnings=False
        ),
        "shards": list(versions),
    }
    return blake2b(json.dumps(named).encode()).digest()


def _epochs_since_like(plan: RunPlan) -> int:
    """Return the number of epochs since the first one in which a run has equal batches."""
    # Windows and draws are drawn anew in each epoch, so that no two epochs have equal batches.
    if plan.end_epoch is None or plan.settings.has_windows or plan.draws is not None:
        return 0
    since = plan.position.since
    begin = plan.position.origin if since is None else since[0]
    # After so many epochs the lanes have the same records again.
    return begin - begin % plan.orders[0].period


def _first_extents(plan: RunPlan, epoch: int) -> npt.NDArray[np.int64]:
    order = plan.orders[0]
    return np.array([order.first(lane, epoch) for lane in plan.own_lanes], np.int64)


MOST = 1 << 30
"""Bytes of the largest batch that is kept: one system call reads it, and Linux ends it at 2 GiB."""


class BatchCache:
    """A cache of one run's batches by the positions before them.

    Its methods block, and may be called from several threads. Batches that it gives have memory of
    their own.

    Args:
        plan: The plan of the run.
        pieces: Keeps the batches, and removes what was not used for long.
        versions: The keys of the shards' versions, in the shards' order.
    """

    def __init__(self, plan: RunPlan, pieces: PieceCache, versions: Sequence[str]) -> None:
        self._keys = BatchKeys(plan, versions)
        self.threads = pieces.threads
        """Threads in which batches can be loaded."""
        self._pieces = pieces
        self._memory = BatchMemory()

    def __repr__(self) -> str:
        return f"<BatchCache in {self._pieces!r}>"

    def load(self, before: Position) -> Batch | None:
        """Return the batch after a position; ``None`` if there is none, or it cannot be read.

        Raises:
            EndOfStream: The run ends there.
        """
        memory = self._bytes_of(self._keys.key(before))
        try:
            return None if memory is None else self._read(memory, before)
        except RemoteProtocolError:
            return None

    def keep(self, batch: Batch, before: Position) -> None:
        """Keep the batch after a position; without memory for that, do nothing."""
        key = self._keys.key(before)
        if self._bytes_of(key) is not None:  # reading it has removed it, if it was damaged
            return
        message = payload.encode(self._keys.normalize(batch))
        header = Header(Kind.BATCH, len(message.metadata), message.payload_size)
        if _size(header) > MOST:
            return
        with contextlib.suppress(MemoryError):
            self._save(key, header, message)

    def keep_end(self, before: Position) -> None:
        """Keep that the run ends at a position."""
        self._save(self._keys.key(before), Header(Kind.END, 0, 0), BatchMessage(b""))

    def close(self) -> None:
        """Keep no memory for further batches; existing batches are not affected."""
        self._memory.close()

    def _bytes_of(self, key: str) -> ByteArray | None:
        pieces = self._pieces.find(key, 0, 1)
        piece = next((piece for piece in pieces if piece.begin == 0 and _is_whole(piece)), None)
        if piece is None:
            return None
        try:
            memory = self._memory.allocate(piece.nbytes)
        except MemoryError:
            return None
        return memory if self._pieces.load(piece, memory.data) else None

    def _read(self, memory: ByteArray, before: Position) -> Batch:
        header = Header.unpack(memory[:HEADER].tobytes())
        if len(memory) != _size(header):
            raise RemoteProtocolError("a kept batch has another size than its header says")
        if header.kind is Kind.END:
            raise EndOfStream
        begin = HEADER + header.metadata_size
        metadata, content = memory[HEADER:begin].tobytes(), memory[begin + header.padding :].data
        message = BatchMessage(metadata, (content,) if len(content) else ())
        batch = payload.decode(message, before.fingerprint, before.rank, before.world_size)
        return self._keys.restore(batch, before)

    def _save(self, key: str, header: Header, message: BatchMessage) -> None:
        memory = self._memory.allocate(_size(header))
        head = header.pack() + message.metadata + bytes(header.padding)
        parts = memoryview(head), *message.payload
        # Unlike a join of bytes, it lets go of the interpreter.
        np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=memory)
        self._pieces.keep(Piece(key, 0, len(memory), len(memory)), memory.data)


def versions_of(objects: Sequence[ObjectInfo], pieces: PieceCache) -> list[str]:
    """Return the keys of objects' versions.

    Raises:
        ConfigError: One has no strong version, so nothing would tell that it has changed.
    """
    for info in objects:
        if info.etag is None or not is_strong(info.etag):
            raise ConfigError(
                f"a cache of batches needs a strong version (ETag) of each shard, but "
                f"{masked(info.url)} has none; name the shards by a glob, whose listing has "
                "versions, or use a cache of ranges"
            )
    return [pieces.key_of(info.url, info.etag or "") for info in objects]


def _size(header: Header) -> int:
    return header.size - TRAILER


def _is_whole(piece: Piece) -> bool:
    return HEADER <= piece.nbytes == piece.size <= MOST
