"""Measures what one core gives for each step of the processing, over bytes in memory."""

from __future__ import annotations

import time
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from streamrec.config.machine import record_limit
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe, dtype_names, is_pair, narrow
from streamrec.formats.examples.features import as_stored, infer_features
from streamrec.formats.examples.renaming import AS_STORED, Renames
from streamrec.formats.shards.compression import HEAD, Compressor, Decompressor, detect, of_name
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.kernel.contract import fresh
from streamrec.masking import masked
from streamrec.measure.figures import Processing, Stage
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.decoder import Decoder
from streamrec.pipeline.batch.functions import Functions
from streamrec.pipeline.batch.origin import Origin
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.pipeline.lane.stages import Filter
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.order.window import FRAME_OVERHEAD
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position
from streamrec.stores.base.protocol import in_thread, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.config import Compression, DatasetSettings
    from streamrec.measure.budget import Budget
    from streamrec.stores.base.protocol import ObjectInfo, Store
    from streamrec.values.columns import ByteArray
    from streamrec.values.record_rows import RecordBlock


SHARDS = 4
"""Shards that the sample is taken from, evenly spread over the dataset."""
MOST_DECOMPRESSED = 8
ENOUGH = 1 << 20
"""Bytes that are decompressed of a shard: at the most so many for each byte that was read, or if
these are few, ``ENOUGH``."""


class ShardStart(NamedTuple):
    """The beginning of a shard, as the store has it."""

    url: str
    data: ByteArray
    compression: Compression

    def frames(self) -> tuple[ShardStart, ByteArray]:
        """Return the stored bytes that could be decompressed, and the bytes of frames in them."""
        if self.compression == "none":
            return self, self.data
        # Bounded: a few bytes of zeros may claim to become gigabytes.
        memory = np.empty(max(ENOUGH, MOST_DECOMPRESSED * len(self.data)), np.uint8)
        consumed, produced = self.decompress(memory)
        return self._replace(data=self.data[:consumed]), memory[:produced]

    def decompress(self, memory: ByteArray) -> tuple[int, int]:
        """Decompress into memory; return the numbers of bytes taken and written."""
        stream = Decompressor(self.compression, url=self.url)
        stream.end()
        # Where the memory is full, the rest stays: enough for a rate.
        _, produced = stream.fill(self.data.data, memory.data)
        return stream.consumed, produced


def blocks_of(url: str, frames: ByteArray, *, check_crc: bool, most: int) -> list[RecordBlock]:
    """Find the whole records in the beginning of a shard.

    Raises:
        DataError: It is corrupt, or a record is longer than ``most``.
    """
    scanner = FrameScanner(url=masked(url), check_crc=check_crc, most=most)
    blocks, _ = scanner.scan(frames, more=True)
    if not blocks and scanner.pending:
        scanner.finish()
    return blocks


async def read_sample(
    store: Store,
    shards: Sequence[ObjectInfo],
    size: int,
    compression: Compression | Literal["auto"],
) -> list[ShardStart]:
    """Read the beginnings of some shards.

    Args:
        store: The shards' store.
        shards: The shards; those of an unknown size are left out.
        size: Bytes to read.
        compression: The shards' compression, or ``"auto"``.

    Raises:
        StoreError: A shard cannot be read.
        ConfigError: No shard holds a byte.
    """
    # A shard of an unknown or no size tells nothing of a rate.
    filled = [shard for shard in shards if shard.size]
    if not filled:
        raise ConfigError("all shards are empty, so nothing can be measured; name other shards")
    # From all over the dataset: shards by class or date differ in their records.
    chosen = filled[:: -(-len(filled) // SHARDS)]
    samples = []
    for shard in chosen:
        # From the beginning, since records are framed from there; a place in the middle begins in
        # no record.
        data, info = await read_range(store, shard, 0, max(1, size // len(chosen)))
        named = of_name(shard.url, info.encoding)
        detected = detect(data[:HEAD].tobytes(), named)
        samples.append(
            ShardStart(shard.url, data, detected if compression == "auto" else compression)
        )
    return samples


_NOWHERE = Position.start(
    Fingerprint("", 1, "shard", 1, shuffle=False, seed=0, shuffle_window=0, global_batch=None),
    [0],
    rank=0,
    world_size=1,
)
"""The position of batches that are of no stream."""


class UserFunctions:
    """The user's functions, called as the pipeline calls them.

    Args:
        functions: The functions.
        features: The specs in their plain form, or ``None`` for raw records.
        urls: The shards' URLs, for errors.
        decoder: Makes the columns that a map or a transform gets; that time does not count.
        renames: As in the decoder.
    """

    def __init__(
        self,
        functions: Functions,
        features: Any,
        urls: Sequence[str],
        decoder: Decoder,
        renames: Renames = AS_STORED,
    ) -> None:
        self._functions, self._urls, self._decoder = functions, urls, decoder
        self._filter = None
        if functions.filter is not None:
            self._filter = Filter(functions.filter, features, urls, renames=renames)

    def seconds(self, span: RecordSpan) -> float:
        """Call all functions on a batch, and return the seconds that they took.

        A filter parses the columns that it uses, which counts.

        Raises:
            FunctionFailed: A function raised, or returned something else than it should.
        """
        began = time.perf_counter()
        if self._filter is not None:
            span = self._filter.apply(span, fresh)
        # Decoding between filter and map is streamrec's own work, so the clock stands still for it.
        filtered = time.perf_counter()
        if not len(span) or not (self._functions.map or self._functions.transform):
            return filtered - began
        columns: Any = self._decoder.columns(span.rows)
        parsed = time.perf_counter()
        self._call(columns, span)
        return filtered - began + time.perf_counter() - parsed

    def _call(self, columns: Any, span: RecordSpan) -> None:
        map_, transform = self._functions.map, self._functions.transform
        origin = Origin(span.rows.shards, span.rows.ordinals)
        if map_ is not None:
            columns = map_.apply(columns, origin, self._urls.__getitem__)
        if transform is not None:
            batch = Batch(columns, len(span), 0, origin, _NOWHERE)
            transform.change(batch, self._urls.__getitem__)


SAMPLE_BYTES = 64 << 20
SECONDS = 0.3
"""Seconds for which a step is repeated, after a first time that does not count if it is shorter."""
COMPRESSED = 4 << 20
"""The most bytes of a shard's beginning that are compressed to see what comes of it."""
BATCH_RECORDS = 64
"""Records of a batch where the settings do not say how many."""


class SamplePiece(NamedTuple):
    """A piece of the sample, which one call works on."""

    content: Any
    size: int
    """Bytes of its frames."""
    records: int


async def measure_processing(
    settings: DatasetSettings, store: Store, shards: Sequence[ObjectInfo], budget: Budget
) -> Processing:
    """Read a sample, and run the functions of the pipeline over it, one step at a time.

    The steps of streamrec are measured in CPU time of one thread, so that other programs on the
    machine do not count; the user's functions in time that passes, since they may wait.

    Args:
        settings: The dataset's settings.
        store: The shards' store, whose requests are charged to the budget.
        shards: The shards.
        budget: What may be spent; the steps after the reading take a few seconds.

    Raises:
        BudgetSpent: The budget does not suffice for the sample.
        StoreError: A shard cannot be read.
        DataError: The records of the sample are damaged, or do not fit the features.
        FunctionFailed: One of the user's functions raised.
        ConfigError: The settings are wrong, or the sample holds no whole record.
    """
    # Half at the most, so that a small budget still has a job.
    size = min(SAMPLE_BYTES, budget.left.bytes // 2)
    async with budget.in_time():
        stored = await read_sample(store, shards, size, settings.compression)
    return await in_thread(_measure, settings, stored)


def _measure(settings: DatasetSettings, stored: Sequence[ShardStart]) -> Processing:
    pairs = [one.frames() for one in stored]
    stored, frames = [one for one, _ in pairs], [data for _, data in pairs]
    spans = [
        span
        for number, (one, data) in enumerate(zip(stored, frames, strict=True))
        for span in _spans(settings, number, one.url, data)
    ]
    if not spans:
        raise ConfigError(
            "the beginnings of the shards hold no whole record; allow the benchmark more bytes"
        )
    whole = [
        SamplePiece(pair, len(pair[1]), sum(len(block) for block in _blocks(settings, *pair)))
        for pair in zip([one.url for one in stored], frames, strict=True)
    ]
    batches = [SamplePiece(span, _frames(span), len(span)) for span in spans]
    features = _features(settings, spans)
    return Processing(
        records=sum(piece.records for piece in whole),
        bytes=sum(len(data) for data in frames),
        stored_bytes=sum(len(one.data) for one in stored),
        zstd_ratio=_zstd_ratio(stored),
        decompress=_decompress(stored, whole),
        scan=_stage(whole, lambda pair: _blocks(settings, *pair, check_crc=False)),
        crc=_stage(whole, lambda pair: _blocks(settings, *pair)),
        **_columns(settings, features, [one.url for one in stored], batches),
    )


def _blocks(
    settings: DatasetSettings, url: str, frames: ByteArray, *, check_crc: bool = True
) -> list[Any]:
    return blocks_of(url, frames, check_crc=check_crc, most=record_limit(settings))


def _spans(settings: DatasetSettings, number: int, url: str, frames: ByteArray) -> list[RecordSpan]:
    """Return the records of a shard's beginning in batches."""
    rows = getattr(settings, "batch_size", None) or BATCH_RECORDS
    whole = (RecordSpan.of(Extent(0, 0, number), block) for block in _blocks(settings, url, frames))
    return [span.cut(at, at + rows) for span in whole for at in range(0, len(span), rows)]


def _frames(span: RecordSpan) -> int:
    return span.rows.nbytes + FRAME_OVERHEAD * len(span)


def _features(settings: DatasetSettings, spans: Sequence[RecordSpan]) -> Any:
    """Return the features in their plain form, as opening the dataset would find them."""
    features: Any = settings.features
    if features == "infer":
        # The first batch, as opening a dataset looks at the beginning.
        records = [bytes(payload) for payload in spans[0].rows.payloads()]
        features = describe(as_stored(infer_features(records, names_of=lambda _: _names(settings))))
    if settings.dtypes and isinstance(features, dict):
        features = narrow(features, dtype_names(settings.dtypes))
    return features


def _names(settings: DatasetSettings) -> Mapping[str, str]:
    """Return the new names of features; none in a mix, as shards do not tell their component."""
    return {} if isinstance(settings.source, dict) else settings.renames[""]


def _decompress(stored: Sequence[ShardStart], whole: Sequence[SamplePiece]) -> Stage | None:
    if all(one.compression == "none" for one in stored):
        return None
    # Once, as allocating is no part of the step.
    memory = np.empty(max(piece.size for piece in whole), np.uint8)
    pieces = [piece._replace(content=one) for one, piece in zip(stored, whole, strict=True)]
    return _stage(pieces, lambda one: one.decompress(memory))


def _zstd_ratio(stored: Sequence[ShardStart]) -> float | None:
    """Return by how much zstd would shrink shards that are not compressed."""
    if any(one.compression != "none" for one in stored):
        return None
    parts = [one.data[:COMPRESSED] for one in stored]
    return sum(map(len, parts)) / sum(map(_compress, parts))


def _compress(part: ByteArray) -> int:
    # At its default level, with which shards would be written.
    compressor = Compressor("zstd")
    return len(compressor.compress(part.data)) + len(compressor.finish())


def _columns(
    settings: DatasetSettings, features: Any, urls: Sequence[str], batches: Sequence[SamplePiece]
) -> dict[str, Any]:
    """Measure the steps from records to the columns that a trainer gets."""
    columns: dict[str, Any] = {}
    renames = Renames(by_component=(_names(settings),))
    decoder = Decoder(features, urls, renames=renames)
    try:
        if features is not None:
            encoded = _without_pictures(features)
            parser = Decoder(encoded, urls, renames=renames)
            columns["parse"] = _stage(batches, lambda span: parser.columns(span.rows))
            parser.close()
            if encoded != features:
                # Decoding has no call of its own: it is what the whole takes beyond parsing.
                both = _stage(batches, lambda span: decoder.columns(span.rows))
                columns["decode"] = _beyond(both, columns["parse"])
        functions = Functions.of(settings)
        if any(functions):
            users = UserFunctions(functions, features, urls, decoder, renames)
            # By the time that passes, as the user's functions may wait.
            columns["transform"] = _rate(batches, users.seconds)
    finally:
        decoder.close()
    return columns


def _without_pictures(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features that give each picture as the string that it is stored as."""
    if is_pair(features):
        return {name: _without_pictures(part) for name, part in features.items()}
    string = {"kind": "fixed", "dtype": "string"}
    return {
        name: string if spec.get("kind") == "image" else spec for name, spec in features.items()
    }


def _beyond(both: Stage, first: Stage | None) -> Stage:
    """Return the rate of the second of two steps, from that of both and that of the first."""
    assert first is not None
    seconds_per_byte = 1 / both.bytes_per_second - 1 / first.bytes_per_second
    # Noise may make both together the faster one.
    rate = 1 / max(seconds_per_byte, 1e-15)
    records_per_byte = both.records_per_second / both.bytes_per_second
    return Stage(bytes_per_second=rate, records_per_second=rate * records_per_byte)


def _stage(pieces: Sequence[SamplePiece], work: Callable[[Any], object]) -> Stage:
    """Measure a step of streamrec."""

    def seconds_of(content: Any) -> float:
        # CPU time of this thread: on a busy machine wall time would measure the others.
        began = time.thread_time()
        work(content)
        return time.thread_time() - began

    return _rate(pieces, seconds_of)


def _rate(pieces: Sequence[SamplePiece], seconds_of: Callable[[Any], float]) -> Stage:
    """Repeat a step over the pieces for a while, and return its rate.

    The first time counts only if it is longer than that: its beginning then matters little.
    """
    began, first = time.perf_counter(), pieces[0]
    seconds, size, records = seconds_of(first.content), first.size, first.records
    end = began + SECONDS
    # The first call warms caches and allocates; a coarse clock may even call it 0 s.
    if time.perf_counter() < end or not seconds:
        seconds, size, records, end = 0.0, 0, 0, time.perf_counter() + SECONDS
    for piece in () if seconds else cycle(pieces):
        seconds += seconds_of(piece.content)
        size, records = size + piece.size, records + piece.records
        if time.perf_counter() >= end and seconds:
            break
    return Stage(bytes_per_second=size / seconds, records_per_second=records / seconds)
