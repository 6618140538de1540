"""Tests of the kernel in C alone: its algorithms, its glue, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.kernel import reference
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from streamrec.values.record_rows import RecordRows
from tests.kernel.test_parse import example
from tests.support import another_ran_within, no_switching, with_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_native: Any = pytest.importorskip(
    "streamrec.kernel._native", reason="the kernel in C was not built"
)
native: Any = pytest.importorskip("streamrec.kernel.native")


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def held(*records: bytes, **changes: Any) -> Any:
    rows = RecordRows.of(records)
    arrays = {"index": rows.buffer_index, "offsets": rows.offsets, "lengths": rows.lengths}
    return (rows.buffers, *(arrays | changes).values())


class TestCrc:
    def test_the_crc_of_every_size(self) -> None:
        data = bytes(range(1, 256)) * 500
        for size in (*range(1300), len(data)):
            assert _native.crc32c(data[:size], size) == reference.crc32c(data[:size], size)


try:
    import _interpreters as interpreters  # type: ignore[import-not-found]
except ImportError:
    import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]


class TestInterpreters:
    """The extension alone: NumPy refuses all interpreters of a process but the first."""

    IMPORT = """
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("streamrec.kernel._native", {file!r})
module = module_from_spec(spec)
spec.loader.exec_module(module)
assert module.crc32c({data!r}, 0) == {crc}
"""

    def test_each_has_a_module(self) -> None:
        data = bytes(range(256)) * 4
        crc = reference.crc32c(data)
        code = self.IMPORT.format(file=_native.__file__, data=data, crc=crc)
        # From 3.12 on with a lock of its own; others than the first run in turn on 3.11.
        other = interpreters.create()
        try:
            # Until 3.12 it raises what the code raises, and then returns it.
            assert interpreters.run_string(other, code) is None
        finally:
            interpreters.destroy(other)
        assert _native.crc32c(data, 0) == crc


class TestGlue:
    """Whatever is handed in, nothing is read or written outside of it."""

    @pytest.mark.parametrize(
        ("rows", "size", "pixel", "room"),
        [
            (2, 4, 3, 8),
            (2, 5, 5, 10),
            (2, 0, 0, 0),
            (2, 3, -3, 6),
            (2, 3, 3, 5),
            (3, 3, 3, 9),
            (-1, 3, 3, 6),
            (2**62, 4, 4, 8),
        ],
    )
    def test_rows_of_pngs(self, rows: int, size: int, pixel: int, room: int) -> None:
        with pytest.raises(ValueError, match="another number of bytes"):
            _native.unfilter(bytes(8), rows, size, pixel, np.empty(room, np.uint8))

    @pytest.mark.parametrize(
        "changes",
        [
            {"index": np.array([1], np.int32)},
            {"index": np.array([-1], np.int32)},
            {"offsets": np.array([-1])},
            {"offsets": np.array([4])},
            {"offsets": np.array([1])},
            {"offsets": np.array([2**63 - 1])},
            {"lengths": np.array([-1])},
            {"lengths": np.array([4])},
            {"lengths": np.array([2**63 - 1])},
        ],
    )
    def test_rows_outside_of_their_buffer_are_refused(self, changes: Any) -> None:
        with pytest.raises(ValueError, match="row 0 lies outside"):
            _native.gather(held(b"abc", **changes), np.empty(3, np.uint8), np.empty(2, np.int64))
        with pytest.raises(ValueError, match="row 0 lies outside"):
            _native.corrupt_row(held(b"abc", **changes), 0)

    @pytest.mark.parametrize(("size", "count"), [(2, 2), (4, 2), (3, 1)])
    def test_memory_of_another_size_is_refused(self, size: int, count: int) -> None:
        with pytest.raises(ValueError, match="another number"):
            _native.gather(held(b"abc"), np.empty(size, np.uint8), np.empty(count, np.int64))

    @pytest.mark.parametrize("size", [0, 18, 20])
    def test_frames_of_another_size_are_refused(self, size: int) -> None:
        with pytest.raises(ValueError, match="another number"):
            _native.frame(held(b"abc"), np.empty(size, np.uint8))

    def test_arrays_of_other_lengths_are_refused(self) -> None:
        rows = held(b"abc", lengths=np.array([1, 1]))
        with pytest.raises(ValueError, match="different lengths"):
            _native.gather(rows, np.empty(3, np.uint8), np.empty(2, np.int64))

    def test_memory_that_is_not_aligned_is_refused(self) -> None:
        odd = np.empty(17, np.uint8)[1:]
        with pytest.raises(ValueError, match="aligned"):
            _native.gather(held(b"abc"), np.empty(3, np.uint8), odd)

    def test_memory_that_cannot_be_written_is_refused(self) -> None:
        with pytest.raises((ValueError, BufferError)):
            _native.gather(held(b"abc"), b"abc", np.empty(2, np.int64))

    @pytest.mark.parametrize(("begin", "end"), [(-1, 4), (3, 2), (0, 5)])
    def test_a_scan_stays_in_its_buffer(self, begin: int, end: int) -> None:
        room = np.empty(1, np.int64)
        with pytest.raises(ValueError, match="begin and end"):
            _native.scan(bytes(4), begin, end, True, 2**63 - 1, room, room)

    @pytest.mark.parametrize(
        "plan",
        [
            (b"a", 4, 3, 1, False, b"", b""),
            (b"a", 0, 0, 1, False, b"", b""),
            (b"a", 0, 3, -1, False, b"", b""),
            (b"a", 1, 3, 1, False, b"", b""),
            (b"a", 2, 3, 1, False, b"", b""),
            (b"a", 0, 3, 1, True, b"1234567", b""),
            (b"a", 0, 1, 1, True, b"ab", bytes(8)),
            (b"a", 0, 3, 2**62, False, b"", b""),
        ],
    )
    def test_plans_that_contradict_themselves_are_refused(self, plan: Any) -> None:
        with pytest.raises(ValueError, match="contradicts"):
            _native.schema((plan,), 1, False)

    @pytest.mark.parametrize(("kind", "features"), [(3, 1), (0, 0), (1, 0)])
    def test_only_feature_lists_have_steps(self, kind: int, features: int) -> None:
        with pytest.raises(ValueError, match="only a feature list has steps"):
            _native.schema(((b"a", kind, 3, 0, False, b"", b""),), features, True)

    def test_columns_without_their_memory_are_refused(self) -> None:
        schema = _native.schema(((b"a", 1, 3, 0, False, b"", b""),), 1, False)
        rows = held(b"")
        for memory in ((), ((None, None, None),), ((None, np.empty(1, np.int64), None),)):
            with pytest.raises(ValueError):
                _native.measure(schema, rows, memory)
        spans = np.empty(2, np.uint32)
        with pytest.raises(ValueError, match="another size"):
            _native.measure(schema, rows, ((None, np.empty(3, np.int64), spans),))

    def test_what_no_longer_fits_is_not_filled(self) -> None:
        schema = _native.schema(((b"a", 1, 3, 0, False, b"", b""),), 1, False)
        rows = held(example(a=(DataType.INT64, [1, 2])))
        spans = np.empty(2, np.uint32)
        fault, *_, sizes = _native.measure(schema, rows, ((None, np.empty(2, np.int64), spans),))
        assert (fault, sizes) == (0, ((2, 0, 0),))
        for size, fits in ((1, False), (2, True), (3, False)):
            memory = ((np.empty(size, np.int64), None, None, spans),)
            assert _native.fill(schema, rows, memory) is fits


class TestParser:
    PLANS = (
        ColumnPlan("a", ColumnKind.FIXED, DataType.INT64),
        ColumnPlan("b", ColumnKind.VARLEN, DataType.FLOAT32),
        ColumnPlan("c", ColumnKind.FIXED, DataType.BYTES),
        ColumnPlan("d", ColumnKind.RAW, DataType.BYTES, (3,)),
    )
    RECORD = example(
        a=(DataType.INT64, [5]),
        b=(DataType.FLOAT32, [1, 2]),
        c=(DataType.BYTES, [b"xy"]),
        d=(DataType.BYTES, [b"rgb"]),
    )

    def test_nothing_is_allocated_for_what_cannot_be_there(self) -> None:
        plan = ColumnPlan("a", ColumnKind.FIXED, DataType.INT64, (10**12,))
        with pytest.raises(native.examples.KernelFault, match="WRONG_COUNT"):
            native.Parser([plan]).parse(RecordRows.of([self.RECORD]))

    def test_a_fault_says_where_it_shows(self) -> None:
        with pytest.raises(native.examples.KernelFault) as caught:
            native.Parser(self.PLANS).parse(RecordRows.of([b"\x52\x01x\x0a\xff"]))
        assert caught.value.offset == 3

    def test_one_parser_serves_many_threads(self) -> None:
        parser, rows = native.Parser(self.PLANS), RecordRows.of([self.RECORD] * 500)
        with ThreadPoolExecutor(4) as threads:
            for a, b, c, d in threads.map(lambda _: parser.parse(rows), range(40)):
                assert a.tolist() == [5] * 500
                assert b.to_list() == [[1, 2]] * 500
                assert c.to_list() == [b"xy"] * 500
                assert d.tobytes() == b"rgb" * 500


@with_gil
class TestOtherThreads:
    """They go on while the kernel works, though the interpreter itself would let none of them."""

    SIZE = 1 << 24

    @pytest.fixture(autouse=True)
    def _no_switching(self) -> Iterator[None]:
        with no_switching():
            yield

    def calls(self) -> dict[str, Callable[[], object]]:
        """Each of some milliseconds, with nothing around it that lets go of the interpreter."""
        ints = b"\x0a" + varint(self.SIZE) + bytes(self.SIZE)
        ints = b"\x1a" + varint(len(ints)) + ints
        entry = b"\x0a\x01a\x12" + varint(len(ints)) + ints
        entry = b"\x0a" + varint(len(entry)) + entry
        rows = held(b"\x0a" + varint(len(entry)) + entry)
        size = int(rows[3][0])
        frames = np.empty(size + 16, np.uint8)
        _native.frame(rows, frames)
        framed = ((frames,), rows[1], rows[2] + 12, rows[3])
        schema = _native.schema(((b"a", 1, 3, 0, False, b"", b""),), 1, False)
        splits, spans = np.zeros(2, np.int64), np.empty(2, np.uint32)
        values, one = np.empty(self.SIZE, np.int64), np.empty(2, np.int64)
        measure = partial(_native.measure, schema, rows, ((None, splits, spans),))
        assert measure()[0] == 0
        return {
            "crc32c": partial(_native.crc32c, frames, 0),
            "scan": partial(_native.scan, frames, 0, len(frames), True, 2**63 - 1, one, one.copy()),
            "corrupt_row": partial(_native.corrupt_row, framed, 0),
            "frame": partial(_native.frame, rows, frames),
            "gather": partial(_native.gather, rows, np.empty(size, np.uint8), one),
            "measure": measure,
            "unfilter": partial(
                _native.unfilter, frames[:size], 1, size - 1, 1, np.empty(size - 1, np.uint8)
            ),
            "fill": partial(_native.fill, schema, rows, ((values, None, None, spans),)),
        }

    def test_they_do(self) -> None:
        for name, call in self.calls().items():
            assert any(another_ran_within(call) for _ in range(1000)), name

    def test_of_what_holds_the_interpreter_this_is_not_so(self) -> None:
        data = bytes(self.SIZE)
        assert not any(another_ran_within(partial(data.count, b"x")) for _ in range(10))

    def test_a_scan_that_reads_a_few_headers_alone_is_over_before_they_could(self) -> None:
        frames = native.frame_records(RecordRows.of([bytes(self.SIZE)]))
        spans = np.empty(2, np.int64), np.empty(2, np.int64)
        few = partial(_native.scan, frames, 0, len(frames), True, self.SIZE, *spans)
        assert few()[:2] == (1, len(frames))
        assert not any(another_ran_within(few) for _ in range(100))
        checked = partial(_native.scan, frames, 0, len(frames), True, self.SIZE + 1, *spans)
        assert any(another_ran_within(checked) for _ in range(1000))

    def test_a_scan_of_many_headers_lets_them(self) -> None:
        frames = native.frame_records(RecordRows.of([bytes(40)] * 100_000))
        spans = np.empty(100_001, np.int64), np.empty(100_001, np.int64)
        many = partial(_native.scan, frames, 0, len(frames), False, 0, *spans)
        assert any(another_ran_within(many) for _ in range(1000))
