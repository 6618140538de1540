"""Input of extreme sizes: right, or refused clearly, in memory that the input's own size bounds."""

from __future__ import annotations

import struct
import tracemalloc
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.specs import FixedLenFeature, FixedLenSequenceFeature
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.kernel.contract import (
    FOOTER,
    HEADER,
    LARGEST_MESSAGE,
    ColumnKind,
    ColumnPlan,
    DataType,
    FaultCode,
    KernelFault,
)
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows
from tests.kernel import extremes
from tests.kernel.conftest import IMPLEMENTATIONS
from tests.kernel.wire_bytes import entry, example, int64_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.values.columns import ByteArray

pytestmark = pytest.mark.night

GIBIBYTE = 1 << 30

zeros_in_a_frame = cache(extremes.zeros_in_a_frame)


@cache
def many_features(count: int) -> RecordRows:
    return extremes.rows_of(extremes.many_features(count))


def fixed(name: str, default: tuple[int, ...] | None = None) -> ColumnPlan:
    return ColumnPlan(name, ColumnKind.FIXED, DataType.INT64, (), default)


def varlen(name: str) -> ColumnPlan:
    return ColumnPlan(name, ColumnKind.VARLEN, DataType.INT64)


def available_memory() -> int:
    """Bytes; 0 where the system does not tell."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else 0


def needs_memory(gibibytes: int) -> None:
    if not Path("/proc/meminfo").exists() or available_memory() < gibibytes * GIBIBYTE:
        pytest.skip(f"needs {gibibytes} GiB of memory")


def is_twin(kernel: Any) -> bool:
    return kernel is IMPLEMENTATIONS[0]


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of the work, and the most memory that it held, in bytes."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestAShardOfNoBytes:
    def test_it_has_no_frames(self, kernel: Any) -> None:
        found = kernel.scan_frames(np.empty(0, np.uint8), 0, 0, True)
        assert (len(found.offsets), len(found.lengths)) == (0, 0)
        assert found[2:] == (0, 0, FaultCode.NONE)

    def test_no_rows_give_empty_columns(self, kernel: Any) -> None:
        plans = [fixed("a"), varlen("b"), ColumnPlan("c", ColumnKind.RAW, DataType.BYTES, (3,))]
        columns = kernel.Parser(plans).parse(RecordRows.of([]))
        assert [len(column) for column in columns] == [0, 0, 0]
        (steps,) = kernel.Parser([], [ColumnPlan("d", ColumnKind.STEPS, DataType.BYTES)]).parse(
            RecordRows.of([])
        )
        assert len(steps) == 0

    def test_no_rows_give_no_frames(self, kernel: Any) -> None:
        assert len(kernel.frame_records(RecordRows.of([]))) == 0
        assert kernel.gather(RecordRows.of([])).offsets.tolist() == [0]


class TestAMillionEmptyRecords:
    @pytest.fixture
    def count(self, kernel: Any) -> int:
        return 50_000 if is_twin(kernel) else 1_000_000

    def test_all_are_found(self, kernel: Any, count: int) -> None:
        shard = extremes.empty_records(count)
        assert len(shard) == (HEADER + FOOTER) * count
        found = kernel.scan_frames(shard, 0, len(shard), True)
        assert found.stop == len(shard)
        assert not found.lengths.any()
        expected = np.arange(HEADER, len(shard), HEADER + FOOTER)
        assert np.array_equal(found.offsets, expected)

    def test_all_are_written(self, kernel: Any, count: int) -> None:
        frames = kernel.frame_records(extremes.empty_rows(count))
        assert np.array_equal(frames, extremes.empty_records(count))

    def test_all_are_parsed(self, kernel: Any, count: int) -> None:
        plans = [varlen("a"), fixed("b", (7,))]
        ragged, filled = kernel.Parser(plans).parse(extremes.empty_rows(count))
        assert len(ragged) == count
        assert not ragged.row_splits.any()
        assert filled.shape == (count,)
        assert (filled == 7).all()

    def test_the_first_that_lacks_something_is_named(self, kernel: Any, count: int) -> None:
        with pytest.raises(KernelFault, match="MISSING in row 0, feature 'a'"):
            kernel.Parser([fixed("a")]).parse(extremes.empty_rows(count))


class TestAFeatureOfManyValues:
    """10^8, packed, of one byte each; the twin gets 10^5."""

    @pytest.fixture
    def count(self, kernel: Any) -> int:
        if is_twin(kernel):
            return 100_000
        needs_memory(3)
        return 100_000_000

    @pytest.mark.parametrize("kind", [ColumnKind.FIXED, ColumnKind.VARLEN])
    def test_all_come_in_just_the_memory_that_they_take(
        self, kernel: Any, count: int, kind: ColumnKind
    ) -> None:
        rows = extremes.rows_of(extremes.packed_values(count))
        shape = (count,) if kind is ColumnKind.FIXED else ()
        parser = kernel.Parser([ColumnPlan("a", kind, DataType.INT64, shape)])
        (column,), peak = peak_of(lambda: parser.parse(rows))
        values = column if kind is ColumnKind.FIXED else column.values
        repeated = values.reshape(-1, extremes.PERIOD)
        assert values.size == count
        assert (repeated == np.arange(extremes.PERIOD)).all()
        if not is_twin(kernel):
            assert peak < 8 * count + 100_000

    def test_one_too_few_is_refused(self, kernel: Any, count: int) -> None:
        rows = extremes.rows_of(extremes.packed_values(count))
        parser = kernel.Parser([ColumnPlan("a", ColumnKind.FIXED, DataType.INT64, (count + 1,))])
        with pytest.raises(KernelFault, match="WRONG_COUNT in row 0"):
            parser.parse(rows)

    def test_a_count_that_no_bytes_bear_out_allocates_nothing(self, kernel: Any) -> None:
        rows = RecordRows.of([example(entry("a", int64_list(*range(10))))] * 100)
        parser = kernel.Parser([ColumnPlan("a", ColumnKind.FIXED, DataType.INT64, (10**9,))])

        def refused() -> None:
            with pytest.raises(KernelFault, match="WRONG_COUNT in row 0"):
                parser.parse(rows)

        assert peak_of(refused)[1] < 1_000_000

    def test_a_size_that_no_bytes_bear_out_allocates_nothing(self, kernel: Any) -> None:
        record = bytearray(extremes.packed_values(1000).tobytes())
        rows = RecordRows.of([extremes.heading(10**9) + record])

        def refused() -> None:
            with pytest.raises(KernelFault, match="MALFORMED in row 0"):
                kernel.Parser([varlen("a")]).parse(rows)

        assert peak_of(refused)[1] < 1_000_000


class TestManyFeatures:
    """10^5 in one record, whose names are alike at both ends."""

    COUNT = 100_000

    @pytest.fixture
    def rows(self) -> RecordRows:
        return many_features(self.COUNT)

    def test_few_of_them(self, kernel: Any, rows: RecordRows) -> None:
        wanted = (0, 77_777, self.COUNT - 1)
        plans = [fixed(extremes.name(number)) for number in wanted]
        columns = kernel.Parser(plans).parse(rows)
        assert [column.tolist() for column in columns] == [[number] for number in wanted]

    def test_all_of_them(self, kernel: Any, rows: RecordRows) -> None:
        plans = [fixed(extremes.name(number)) for number in range(self.COUNT)]
        columns = kernel.Parser(plans).parse(rows)
        assert np.array_equal(np.concatenate(columns), np.arange(self.COUNT))

    def test_all_of_them_in_another_order(self, kernel: Any, rows: RecordRows) -> None:
        order = np.random.RandomState(1).permutation(self.COUNT)
        plans = [fixed(extremes.name(number)) for number in order.tolist()]
        columns = kernel.Parser(plans).parse(rows)
        assert np.array_equal(np.concatenate(columns), order)

    def test_each_by_a_spec_of_its_own(self, rows: RecordRows) -> None:
        names = [extremes.name(number) for number in range(self.COUNT)]
        specs = dict.fromkeys(names, FixedLenFeature((), "int64"))
        columns: Any = FeatureParser(specs).parse(rows)
        assert list(columns) == names
        assert np.array_equal(np.concatenate(list(columns.values())), np.arange(self.COUNT))

    def test_feature_lists_each_by_a_spec_of_its_own(self) -> None:
        spec = FixedLenSequenceFeature((), "int64", allow_missing=True)
        names = [extremes.name(number) for number in range(self.COUNT)]
        parser = FeatureParser((None, dict.fromkeys(names, spec)))
        found = parser.parse_parts(RecordRows.of([]))
        assert list(found.sequences) == list(found.lengths) == names

    def test_of_one_key_given_so_often_the_last_counts(self, kernel: Any) -> None:
        rows = extremes.rows_of(extremes.duplicates(self.COUNT))
        single, ragged = (
            kernel.Parser([plan]).parse(rows)[0] for plan in (fixed("a"), varlen("a"))
        )
        assert single.tolist() == [self.COUNT - 1]
        assert ragged.to_list() == [[self.COUNT - 1]]


class TestARecordOfThreeGibibytes:
    """A record of 3 GiB of zeros, for which the system keeps no memory until it is written."""

    SIZE = 3 * GIBIBYTE

    @pytest.fixture
    def shard(self) -> ByteArray:
        needs_memory(4)
        return zeros_in_a_frame(self.SIZE)

    def test_it_is_found_and_checked(self, kernel: Any, shard: ByteArray) -> None:
        found = kernel.scan_frames(shard, 0, len(shard), True)
        assert (found.offsets.tolist(), found.lengths.tolist()) == ([HEADER], [self.SIZE])
        assert found[2:] == (len(shard), 0, FaultCode.NONE)

    def test_one_byte_less_is_not_enough(self, kernel: Any, shard: ByteArray) -> None:
        found = kernel.scan_frames(shard, 0, len(shard) - 1, True)
        assert found[2:] == (0, len(shard), FaultCode.NONE)

    def test_the_scanner_of_shards_gives_it_without_a_copy(self, shard: ByteArray) -> None:
        scanner = FrameScanner(url="mem://large")

        def scan() -> Any:
            return scanner.scan(shard, more=False)

        (blocks, consumed), peak = peak_of(scan)
        assert consumed == len(shard)
        assert [block.lengths.tolist() for block in blocks] == [[self.SIZE]]
        assert blocks[0].buffer is shard
        assert peak < 1_000_000

    def test_to_parse_it_is_refused(self, kernel: Any, shard: ByteArray) -> None:
        rows = extremes.rows_of(shard[HEADER:-FOOTER])
        with pytest.raises(KernelFault, match="TOO_LARGE in row 0") as caught:
            kernel.Parser([varlen("a")]).parse(rows)
        assert caught.value.code is FaultCode.TOO_LARGE

    def test_it_is_refused_by_its_size_alone(self, kernel: Any, shard: ByteArray) -> None:
        rows = extremes.rows_of(shard[: LARGEST_MESSAGE + 1])
        with pytest.raises(KernelFault, match="TOO_LARGE in row 0"):
            kernel.Parser([varlen("a")]).parse(rows)

    def test_a_length_beyond_int64_is_no_record(self, kernel: Any) -> None:
        length = struct.pack("<Q", 2**64 - 1)
        crc = struct.pack("<I", kernel.masked_crc32c(length))
        data = np.frombuffer(length + crc + bytes(100), np.uint8)
        found = kernel.scan_frames(data, 0, len(data), True)
        assert (len(found.offsets), found.stop, found.needed) == (0, 0, 2**63 - 1)


def test_rows_may_be_longer_together_than_their_memory(kernel: Any) -> None:
    record = example(entry("a", int64_list(*range(50))))
    n = 2000
    rows = RecordRows.from_column(BytesColumn.of([record])).take(np.zeros(n, np.int64))
    (column,) = kernel.Parser([varlen("a")]).parse(rows)
    assert np.array_equal(column.values, np.tile(np.arange(50), n))
