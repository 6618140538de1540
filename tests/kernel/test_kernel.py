"""Tests of every implementation of the kernel."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernel.contract import MAX_NEEDED, FaultCode
from streamrec.values.record_rows import RecordRows
from tests.by_day import stops
from tests.data.expected import shard_bytes
from tests.kernel.conftest import IMPLEMENTATIONS

KERNELS = st.sampled_from(IMPLEMENTATIONS)
RECORDS = st.lists(st.binary(max_size=40), max_size=8)


def octets(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def scanned(kernel: Any, data: bytes, *, check_crc: bool = True) -> list[bytes]:
    found = kernel.scan_frames(octets(data), 0, len(data), check_crc)
    return [
        data[offset : offset + length]
        for offset, length in zip(found.offsets.tolist(), found.lengths.tolist(), strict=True)
    ]


class TestCrc32c:
    @pytest.mark.parametrize(
        ("data", "crc"),
        [  # RFC 3720, appendix B.4; its bytes are the CRC's, lowest first
            (bytes(32), 0x8A9136AA),
            (b"\xff" * 32, 0x62A8AB43),
            (bytes(range(32)), 0x46DD794E),
            (bytes(range(31, -1, -1)), 0x113FDB5C),
            (
                bytes.fromhex(
                    "01c00000000000000000000000000000"
                    "14000000000004000000001400000018"
                    "28000000000000000200000000000000"
                ),
                0xD9963A56,
            ),
            (b"123456789", 0xE3069283),
            (b"", 0),
        ],
    )
    def test_known_values(self, kernel: Any, data: bytes, crc: int) -> None:
        assert kernel.crc32c(data) == crc

    def test_the_mask_is_that_of_tensorflow(self, kernel: Any) -> None:
        frame = "00" * 8 + "29039807" + "d8ea82a2"
        # The frame that TensorFlow writes for a record of 0 bytes holds both.
        assert shard_bytes("sizes.tfrecord")[:16].hex() == frame
        assert kernel.masked_crc32c(bytes(8)) == 0x07980329
        assert kernel.masked_crc32c(b"") == 0xA282EAD8

    @given(kernel=KERNELS, data=st.binary(max_size=100), cut=st.integers(0, 100))
    def test_goes_on_from_a_value(self, kernel: Any, data: bytes, cut: int) -> None:
        assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)

    @given(kernel=KERNELS, data=st.binary(max_size=100))
    def test_equals_another_library(self, kernel: Any, data: bytes) -> None:
        assert kernel.crc32c(data) == google_crc32c.value(data)
        assert kernel.masked_crc32c(data) == rotate(google_crc32c.value(data))

    def test_takes_every_buffer(self, kernel: Any) -> None:
        data = b"123456789"
        for buffer in (bytearray(data), memoryview(b"x" + data)[1:], octets(data)):
            assert kernel.crc32c(buffer) == 0xE3069283


def rotate(crc: int) -> int:
    """Mask as TensorFlow's comment says: rotate right by 15 bits and add a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


class TestFrames:
    @given(kernel=KERNELS, records=RECORDS)
    def test_round_trip(self, kernel: Any, records: list[bytes]) -> None:
        frames = kernel.frame_records(RecordRows.of(records))
        assert len(frames) == sum(map(len, records)) + 16 * len(records)
        assert scanned(kernel, frames.tobytes()) == records

    def test_a_frame_is_laid_out_as_tensorflow_has_it(self, kernel: Any) -> None:
        length = struct.pack("<Q", 3)
        frame = kernel.frame_records(RecordRows.of([b"abc"])).tobytes()
        assert frame == b"".join(
            [
                length,
                struct.pack("<I", kernel.masked_crc32c(length)),
                b"abc",
                struct.pack("<I", kernel.masked_crc32c(b"abc")),
            ]
        )

    def test_frames_are_writable(self, kernel: Any) -> None:
        assert kernel.frame_records(RecordRows.of([b"abc"])).flags.writeable
        assert len(kernel.frame_records(RecordRows.of([]))) == 0


class TestScan:
    @given(kernel=KERNELS, records=RECORDS, cut=st.integers(0, 500), begin=st.integers(0, 20))
    def test_stops_at_the_first_incomplete_frame(
        self, kernel: Any, records: list[bytes], cut: int, begin: int
    ) -> None:
        frames = kernel.frame_records(RecordRows.of(records)).tobytes()
        cut = min(cut, len(frames))
        ends = np.cumsum([0] + [len(record) + 16 for record in records])
        whole = int(np.searchsorted(ends, cut, side="right")) - 1
        found = kernel.scan_frames(octets(b"?" * begin + frames), begin, begin + cut, True)
        assert len(found.offsets) == len(found.lengths) == whole
        assert found.stop == begin + ends[whole]
        assert found.fault is FaultCode.NONE
        header_is_complete = cut - ends[whole] >= 12
        assert found.needed == (len(records[whole]) + 16 if header_is_complete else 0)

    def test_finds_nothing_in_nothing(self, kernel: Any) -> None:
        found = kernel.scan_frames(octets(b""), 0, 0, True)
        assert (found.stop, found.needed, found.fault) == (0, 0, FaultCode.NONE)
        assert found.offsets.dtype == found.lengths.dtype == np.int64
        assert len(found.offsets) == 0

    @pytest.mark.parametrize("bit", stops(range(19 * 8), every=4))
    def test_every_flipped_bit_is_found(self, kernel: Any, bit: int) -> None:
        first, second = b"first", b"abc"
        frames = kernel.frame_records(RecordRows.of([first, second])).tobytes()
        start = len(first) + 16
        broken = bytearray(frames)
        broken[start + bit // 8] ^= 1 << bit % 8
        found = kernel.scan_frames(octets(bytes(broken)), 0, len(broken), True)
        assert found.fault is (FaultCode.LENGTH_CRC if bit < 96 else FaultCode.DATA_CRC)
        assert found.stop == start
        assert found.needed == 0
        assert found.offsets.tolist() == [12]
        assert found.lengths.tolist() == [len(first)]

    def test_unchecked_crcs_are_not_read(self, kernel: Any) -> None:
        frames = struct.pack("<QI", 3, 1) + b"abc" + struct.pack("<I", 2)
        assert scanned(kernel, frames, check_crc=False) == [b"abc"]
        assert scanned(kernel, frames) == []

    @pytest.mark.parametrize("length", [2**31, 2**63 - 17, 2**63 - 16, 2**63, 2**64 - 1])
    @pytest.mark.parametrize("check_crc", [True, False])
    def test_a_huge_length_is_needed_and_capped(
        self, kernel: Any, length: int, check_crc: bool
    ) -> None:
        header = struct.pack("<Q", length)
        header += struct.pack("<I", kernel.masked_crc32c(header))
        found = kernel.scan_frames(octets(header + b"payload"), 0, 19, check_crc)
        assert found.needed == min(length + 16, MAX_NEEDED)
        assert (found.stop, found.fault) == (0, FaultCode.NONE)

    @pytest.mark.parametrize("length", [2**63, 2**64 - 1])
    def test_a_huge_length_with_a_wrong_crc_is_a_fault(self, kernel: Any, length: int) -> None:
        found = kernel.scan_frames(octets(struct.pack("<QI", length, 7)), 0, 12, True)
        assert (found.fault, found.needed) == (FaultCode.LENGTH_CRC, 0)

    @given(kernel=KERNELS, junk=st.binary(max_size=100))
    def test_junk_never_crashes(self, kernel: Any, junk: bytes) -> None:
        for check_crc in (True, False):
            found = kernel.scan_frames(octets(junk), 0, len(junk), check_crc)
            assert 0 <= found.stop <= len(junk)


LARGE = st.integers(0, 60)


class TestCorruptRow:
    """Late checks of the records that a scan has left unchecked."""

    @given(kernel=KERNELS, records=RECORDS.filter(any), large=LARGE, at=st.integers(0, 2**16))
    def test_the_two_find_together_what_a_whole_scan_finds(
        self, kernel: Any, records: list[bytes], large: int, at: int
    ) -> None:
        frames = kernel.frame_records(RecordRows.of(records))
        lengths = np.array([len(record) for record in records])
        chosen = int(np.flatnonzero(lengths)[at % np.count_nonzero(lengths)])
        begins = np.cumsum(lengths + 16) - (lengths + 16)
        frames[begins[chosen] + 12 + at % (lengths[chosen] + 4)] ^= 1
        found = kernel.scan_frames(frames, 0, len(frames), True, large)
        assert found.fault is (FaultCode.DATA_CRC if lengths[chosen] < large else FaultCode.NONE)
        rows = rows_of(frames, found)
        assert kernel.corrupt_row(rows, large) == (-1 if lengths[chosen] < large else chosen)
        assert kernel.scan_frames(frames, 0, len(frames), False, large).fault is FaultCode.NONE

    def test_lengths_are_checked_at_once(self, kernel: Any) -> None:
        frames = kernel.frame_records(RecordRows.of([b"abc"]))
        frames[9] ^= 1
        assert kernel.scan_frames(frames, 0, len(frames), True, 0).fault is FaultCode.LENGTH_CRC

    @pytest.mark.parametrize("cut", range(1, 5))
    def test_a_row_with_no_crc_behind_it_is_corrupt(self, kernel: Any, cut: int) -> None:
        frames = kernel.frame_records(RecordRows.of([b"abc", b"de"]))
        rows = rows_of(frames, kernel.scan_frames(frames, 0, len(frames), True))
        assert kernel.corrupt_row(rows) == -1
        short = replace(rows, buffers=(frames[:-cut],))
        assert kernel.corrupt_row(short) == 1
        assert kernel.corrupt_row(short, 3) == -1

    def test_there_may_be_none(self, kernel: Any) -> None:
        assert kernel.corrupt_row(RecordRows.of([])) == -1


def rows_of(frames: Any, found: Any) -> RecordRows:
    n = len(found.offsets)
    index = np.zeros(n, np.int32)
    return RecordRows((frames,), index, found.offsets, found.lengths, index, np.arange(n))


class TestGather:
    @given(kernel=KERNELS, records=RECORDS, seed=st.integers(0, 2**32 - 1))
    def test_copies_rows_in_their_order(self, kernel: Any, records: list[bytes], seed: int) -> None:
        rows = RecordRows.of(records)
        order = np.random.default_rng(seed).permutation(len(records))
        shuffled = RecordRows(
            (octets(b"unused"), *rows.buffers),
            rows.buffer_index[order] + 1,
            rows.offsets[order],
            rows.lengths[order],
            rows.shards[order],
            rows.ordinals[order],
        )
        assert kernel.gather(shuffled).to_list() == [records[i] for i in order]
        assert [bytes(payload) for payload in shuffled.payloads()] == [records[i] for i in order]

    @pytest.mark.parametrize("past", range(-70, 71, 7))
    def test_large_records_of_any_size_at_any_place(self, kernel: Any, past: int) -> None:
        content = np.random.default_rng(past + 70).bytes((64 << 10) + past)
        for before in (0, 1, 16, 63):
            records = [bytes(before), content, b"behind"]
            assert kernel.gather(RecordRows.of(records)).to_list() == records

    def test_memory_is_its_own(self, kernel: Any) -> None:
        rows = RecordRows.of([b"abc", b"de"])
        column = kernel.gather(rows)
        column.values[:] = 0
        assert bytes(next(rows.payloads())) == b"abc"
