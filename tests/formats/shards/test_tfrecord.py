from __future__ import annotations

import hashlib
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.errors import CorruptLength, CorruptRecord, DataError, RecordTooLarge, TruncatedShard
from streamrec.formats.shards.tfrecord import (
    FOOTER,
    HEADER,
    LARGE,
    FrameScanner,
    corrupt_row,
    frame,
)
from streamrec.kernel.contract import fresh
from streamrec.values.record_rows import RecordRows
from tests.data.expected import SHARDS, shard_bytes

if TYPE_CHECKING:
    from streamrec.values.columns import ByteArray
    from streamrec.values.record_rows import RecordBlock

pytestmark = pytest.mark.both_kernels

RECORDS = [b"", b"abc", b"x" * 40, b"", b"", b"yz" * 9]
SHARD = b"".join(map(frame, RECORDS))
STARTS = [0, *np.cumsum([len(record) + 16 for record in RECORDS]).tolist()]


class Feed:
    """Feeds a shard to a scanner, and checks every block against the shard."""

    def __init__(self, shard: bytes, records: list[bytes], **options: Any) -> None:
        self.shard = np.frombuffer(shard, np.uint8)
        self.scanner = FrameScanner(url="s3://b/k", shard=3, **options)
        self.records = records
        self.fed = self.scanner.offset
        self.got: list[bytes] = []

    def step(self, stop: int, *, more: bool) -> int:
        """Present the bytes from the first unconsumed one to ``stop``."""
        blocks, consumed = self.scanner.scan(self.shard[self.fed : stop], more=more)
        assert 0 <= consumed <= stop - self.fed
        self.fed += consumed
        for block in blocks:
            self.take(block)
        assert self.scanner.ordinal == len(self.got)
        return consumed

    def take(self, block: RecordBlock) -> None:
        assert len(block) > 0
        assert block.shard == 3
        assert block.first_ordinal == len(self.got)
        for offset, length in zip(block.offsets.tolist(), block.lengths.tolist(), strict=True):
            payload = block.buffer[offset : offset + length].tobytes()
            start = block.base + offset
            assert payload == self.shard[start : start + length].tobytes()
            self.got.append(payload)

    def finish(self) -> None:
        self.scanner.finish()
        assert self.got == self.records
        assert self.scanner.offset == len(self.shard)


def feed(shard: bytes, stops: list[int], *, more: bool = False, **options: Any) -> Feed:
    """Feed a shard piece by piece; returns after the last piece, which is the last there is."""
    run = Feed(shard, RECORDS, **options)
    for stop in stops:
        run.step(stop, more=more and stop < len(shard))
    return run


class TestDribble:
    def test_whole(self) -> None:
        run = feed(SHARD, [len(SHARD)])
        run.finish()
        assert repr(run.scanner) == f"<FrameScanner of s3://b/k at record 6, byte {len(SHARD)}>"

    @pytest.mark.parametrize("more", [True, False])
    def test_byte_by_byte(self, more: bool) -> None:
        feed(SHARD, list(range(1, len(SHARD) + 1)), more=more).finish()

    @pytest.mark.parametrize("more", [True, False])
    def test_every_split(self, more: bool) -> None:
        for split in range(len(SHARD) + 1):
            feed(SHARD, [split, len(SHARD)], more=more).finish()

    def test_every_pair_of_splits(self) -> None:
        for first in range(0, len(SHARD), 3):
            for second in range(first, len(SHARD), 5):
                feed(SHARD, [first, second, len(SHARD)]).finish()

    @given(
        records=st.lists(st.binary(max_size=60), max_size=8),
        pieces=st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30),
        size_is_known=st.booleans(),
        check_crc=st.booleans(),
        leaves_large=st.booleans(),
    )
    def test_any_way(
        self,
        records: list[bytes],
        pieces: list[tuple[int, bool]],
        size_is_known: bool,
        check_crc: bool,
        leaves_large: bool,
    ) -> None:
        shard = b"".join(map(frame, records))
        run = Feed(shard, records, check_crc=check_crc, leaves_large=leaves_large)
        run.scanner.size = len(shard) if size_is_known else None
        stop = 0
        for length, more in pieces:
            stop = min(stop + length, len(shard))
            run.step(stop, more=more)
        run.step(len(shard), more=False)
        run.finish()

    @pytest.mark.parametrize("more", [True, False])
    def test_trailing_junk(self, more: bool) -> None:
        junk = SHARD + b"\x01\x02\x03"
        for split in range(0, len(junk) + 1, 7):
            run = feed(junk, [split, len(junk)], more=more)
            assert run.got == RECORDS
            with pytest.raises(TruncatedShard) as caught:
                run.scanner.finish()
            assert (caught.value.offset, caught.value.record) == (len(SHARD), len(RECORDS))

    def test_more_leaves_the_tail_in_place(self) -> None:
        run = Feed(SHARD, RECORDS)
        assert run.step(STARTS[2] + 5, more=True) == STARTS[2]
        assert run.step(STARTS[2] + 6, more=True) == 0
        assert run.step(len(SHARD), more=False) == len(SHARD) - STARTS[2]
        run.finish()

    @pytest.mark.parametrize("cut", [HEADER, 20, 105])
    @pytest.mark.parametrize("in_place", [True, False])
    def test_a_record_in_memory_of_its_own(self, cut: int, in_place: bool) -> None:
        size = 90 + HEADER + FOOTER
        view = np.frombuffer(frame(b"x" * 90) + frame(b"end"), np.uint8)
        scanner, memory = FrameScanner(url="u"), np.zeros(size, np.uint8)
        assert scanner.scan(view[:cut], more=True) == ([], 0)
        assert scanner.needed == size
        assert scanner.scan(view[:cut], more=False, memory=memory) == ([], cut)
        assert scanner.needed == 0
        rest = view[cut:size]
        if in_place:
            memory[cut:] = rest
            rest = memory[cut:]
            memory.flags.writeable = False  # it is not copied onto itself
        (block,), consumed = scanner.scan(rest, more=False)
        assert consumed == size - cut
        assert np.shares_memory(block.buffer, memory)
        assert block.buffer.tobytes() == view[:size].tobytes()
        (block,), _ = scanner.scan(view[size:], more=False)
        assert block.first_ordinal == 1
        scanner.finish()

    def test_records_of_one_view_are_not_copied(self) -> None:
        view = np.frombuffer(SHARD, np.uint8)
        (block,), _ = FrameScanner(url="u").scan(view, more=False)
        assert block.buffer is view
        assert len(block) == len(RECORDS)

    def test_starts_in_mid_shard(self) -> None:
        run = Feed(SHARD, RECORDS, offset=STARTS[2], ordinal=2)
        run.got = RECORDS[:2]
        for stop in range(STARTS[2] + 1, len(SHARD) + 1):
            run.step(stop, more=False)
        run.finish()

    def test_a_record_larger_than_the_views(self) -> None:
        records = [b"a", bytes(range(256)) * 1000, b"b"]
        shard = b"".join(map(frame, records))
        for size in (None, len(shard)):
            run = Feed(shard, records)
            run.scanner.size = size
            for stop in range(0, len(shard), 1000):
                run.step(stop, more=False)
            run.step(len(shard), more=False)
            run.finish()


class TestTruncation:
    @pytest.mark.parametrize("more", [True, False])
    @pytest.mark.parametrize("size_is_known", [True, False])
    def test_at_every_length(self, more: bool, size_is_known: bool) -> None:
        for length in set(range(len(SHARD))) - set(STARTS):
            run = Feed(SHARD[:length], RECORDS)
            run.scanner.size = length if size_is_known else None
            run.step(length // 2, more=more)
            with pytest.raises(TruncatedShard) as caught:
                finish(run, length)
            record = int(np.searchsorted(STARTS, length)) - 1
            assert run.got == RECORDS[:record]
            assert caught.value.fields() == {
                "url": "s3://b/k",
                "offset": STARTS[record],
                "record": record,
            }

    def test_between_records_is_a_shorter_shard(self) -> None:
        for records, length in enumerate(STARTS):
            run = Feed(SHARD[:length], RECORDS[:records])
            run.step(length, more=False)
            run.finish()

    def test_the_message_says_what_is_left(self) -> None:
        run = Feed(SHARD[:-1], RECORDS)
        with pytest.raises(TruncatedShard, match=r"33 bytes into the record's frame: it was cut"):
            finish(run, len(SHARD) - 1)


def finish(run: Feed, *stops: int) -> None:
    """Feed up to each of the stops, and say that the last is the end."""
    for stop in stops:
        run.step(stop, more=False)
    run.scanner.finish()


class TestCorruption:
    @pytest.mark.parametrize("split", [0, 10, STARTS[2] + 20])
    def test_every_flipped_bit(self, split: int) -> None:
        for bit in range(8 * len(SHARD)):
            broken = bytearray(SHARD)
            broken[bit // 8] ^= 1 << bit % 8
            run = Feed(bytes(broken), RECORDS)
            run.scanner.size = len(SHARD)
            with pytest.raises(DataError) as caught:
                finish(run, split, len(SHARD))
            record = int(np.searchsorted(STARTS, bit // 8, side="right")) - 1
            in_header = bit // 8 - STARTS[record] < HEADER
            assert type(caught.value) is (CorruptLength if in_header else CorruptRecord)
            assert (caught.value.offset, caught.value.record) == (STARTS[record], record)
            assert run.got == RECORDS[:record]

    def test_the_records_before_come_first(self) -> None:
        broken = bytearray(SHARD)
        broken[STARTS[2] + 12] ^= 1
        run = Feed(bytes(broken), RECORDS)
        assert run.step(len(SHARD), more=False) == STARTS[2]
        assert run.got == RECORDS[:2]
        for _ in range(2):  # it stays
            with pytest.raises(CorruptRecord):
                run.step(len(SHARD), more=True)
        with pytest.raises(CorruptRecord):
            run.scanner.finish()

    def test_messages_hold_both_crcs(self) -> None:
        broken = bytearray(frame(b"abc"))
        broken[-1] ^= 0x80
        run = Feed(bytes(broken), [])
        stored = int.from_bytes(broken[-FOOTER:], "little")
        with pytest.raises(CorruptRecord) as caught:
            finish(run, len(broken))
        assert str(caught.value) == (
            f"s3://b/k, offset 0, record 0: the CRC32C of the record's 3 bytes is "
            f"{stored ^ 0x80000000:#010x}, but the shard says {stored:#010x}; "
            "fetch or write the shard again"
        )

    def test_another_kind_of_file(self) -> None:
        run = Feed(b"\x1f\x8b\x08 not a TFRecord file at all", [])
        with pytest.raises(CorruptLength, match="corrupt, compressed, or not a TFRecord file"):
            finish(run, 20)

    def test_unchecked_crcs(self) -> None:
        records = [b"abc", b"defg"]
        shard = b"".join(struct.pack("<QI", len(r), 1) + r + bytes(4) for r in records)
        run = Feed(shard, records, check_crc=False)
        run.scanner.size = len(shard)
        for stop in range(len(shard) + 1):
            run.step(stop, more=False)
        run.finish()


class TestLargeOnes:
    """Large records whose check is left to the reader, at any end of a view."""

    @pytest.mark.parametrize("size", [LARGE - 1, LARGE])
    @pytest.mark.parametrize("split", [0, 20, HEADER + LARGE // 2, HEADER + LARGE])
    def test_are_checked_once(self, size: int, split: int) -> None:
        broken = bytearray(frame(bytes(size)))
        broken[HEADER + size // 3] ^= 1
        scanner = FrameScanner(url="u", leaves_large=True)
        view = np.frombuffer(bytes(broken), np.uint8)
        first, _ = scanner.scan(view[:split], more=False)
        second, _ = scanner.scan(view[split:], more=False)
        rows = [RecordRows.from_block(block) for block in (*first, *second)]
        assert scanner.pending == (size < LARGE)
        assert [corrupt_row(row) for row in rows] == ([] if size < LARGE else [0])


def header(length: int, *, right: bool = True) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", kernel.masked_crc32c(packed) ^ (not right))


class TestLength:
    @pytest.mark.parametrize("length", [2**47, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
    @pytest.mark.parametrize("size", [None, 1000])
    @pytest.mark.parametrize("right", [True, False])
    def test_a_huge_one_is_refused(self, length: int, size: int | None, right: bool) -> None:
        shard = frame(b"abc") + header(length, right=right) + b"payload"
        for check_crc in (True, False):
            for split in (0, 25):
                run = Feed(shard, [b"abc"], check_crc=check_crc)
                run.scanner.size = size
                with pytest.raises(CorruptLength) as caught:
                    finish(run, split, len(shard))
                assert (caught.value.offset, caught.value.record) == (19, 1)
                assert run.got == [b"abc"]
                assert ("no real record is that long" in str(caught.value)) == right

    def test_one_beyond_the_shard_is_refused_at_its_header(self) -> None:
        run = Feed(header(10**12) + b"payload", [])
        run.scanner.size = 5000
        assert run.step(19, more=True) == 0
        with pytest.raises(TruncatedShard) as caught:
            run.step(19, more=True)
        assert caught.value.message == (
            "the record's length matches its CRC32C, but its 1000000000000 bytes reach beyond byte "
            "5000, the end of the shard: it was cut short, and the records after this place are "
            "missing; fetch or write the shard again"
        )

    def test_one_beyond_an_indexed_chunk_names_the_chunk(self) -> None:
        scanner = FrameScanner(url="u", counts_gaps=False)
        scanner.size = 15
        scanner.scan(np.frombuffer(header(4), np.uint8), more=True)
        with pytest.raises(TruncatedShard, match="byte 15, the end of the shard's indexed chunk"):
            scanner.finish()

    def test_an_unchecked_one_beyond_the_shard_is_checked_after_all(self) -> None:
        run = Feed(header(10**12, right=False), [], check_crc=False)
        run.scanner.size = 5000
        with pytest.raises(CorruptLength, match="CRC32C of the record's length"):
            finish(run, 12)

    @pytest.mark.parametrize("size", [None, 100])
    def test_nothing_large_is_allocated(self, size: int | None) -> None:
        run = Feed(header(2**40) + bytes(50), [])
        run.scanner.size = size
        tracemalloc.start()
        with pytest.raises(TruncatedShard):
            finish(run, 62)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20

    @pytest.mark.parametrize("size_is_known", [True, False])
    @pytest.mark.parametrize("length", [100, 4000, 65536 + 1, 70_000, 262_144 - 16])
    def test_memory_follows_the_bytes_that_have_come(
        self, length: int, size_is_known: bool
    ) -> None:
        payload = (bytes(range(251)) * (length // 251 + 1))[:length]
        needed, taken = length + 16, 0

        def allocate(size: int) -> ByteArray:
            came = run.fed + 1000
            assert size <= min(needed, max(1024, 4 * came)), "of this record, and of what came"
            nonlocal taken
            taken += size
            return fresh(size)

        run = Feed(frame(payload), [payload], allocate=allocate, share=1024)
        run.scanner.size = needed if size_is_known else None
        finish(run, *range(1000, needed, 1000), needed)
        assert run.got == [payload]
        assert taken <= 3 * needed // 2 + 4 * 1024

    def test_a_straddling_record_within_its_share_is_one_allocation(self) -> None:
        payload = bytes(3 << 20)
        run = Feed(frame(payload), [payload], share=4 << 20)
        buffers = set()
        for stop in range(100, len(payload), 1 << 16):
            run.step(stop, more=False)
            buffers.add(id(run.scanner._tail._buffer))
        assert len(buffers) == 1
        finish(run, len(payload) + 16)
        assert run.got == [payload]


class TestLimit:
    """Records of 30 bytes are taken."""

    SMALL, WHOLE, LONG = b"abc", b"w" * 30, b"x" * 31

    @pytest.mark.parametrize("more", [True, False])
    @pytest.mark.parametrize("size_is_known", [True, False])
    @pytest.mark.parametrize("check_crc", [True, False])
    @pytest.mark.parametrize("is_damaged", [True, False])
    def test_at_every_split(
        self, more: bool, size_is_known: bool, check_crc: bool, is_damaged: bool
    ) -> None:
        """Even where the payload, which nobody needs to look at, is there and damaged."""
        before = [self.SMALL, self.WHOLE, self.SMALL]
        shard = bytearray(b"".join(map(frame, [*before, self.LONG, self.SMALL])))
        begin = sum(len(record) + 16 for record in before)
        shard[begin + 20] ^= is_damaged
        for split in range(len(shard) + 1):
            run = Feed(bytes(shard), before, most=30, check_crc=check_crc)
            run.scanner.size = len(shard) if size_is_known else None
            with pytest.raises(RecordTooLarge) as caught:
                run.step(split, more=more)
                run.step(len(shard), more=False)
                run.step(len(shard), more=False)
            assert run.got == before
            assert (caught.value.offset, caught.value.record) == (begin, 3)

    def test_byte_by_byte_no_memory_is_taken(self) -> None:
        def allocate(size: int) -> ByteArray:
            raise AssertionError(f"{size} bytes")

        run = Feed(frame(self.LONG), [], most=30, allocate=allocate)
        for stop in range(HEADER + 1):
            assert not run.scanner.pending
            run.step(stop, more=False)
        with pytest.raises(RecordTooLarge) as caught:
            run.step(HEADER + 1, more=False)
        assert caught.value.message == (
            "the record has 31 bytes, more than max_record_bytes, which is 30 (by default as "
            "much as memory_budget); raise max_record_bytes, or both, to read the record"
        )

    @given(
        lengths=st.lists(st.integers(0, 40), max_size=6),
        most=st.integers(1, 40),
        cuts=st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=8),
    )
    def test_any_way(self, lengths: list[int], most: int, cuts: list[tuple[int, bool]]) -> None:
        records = [bytes([n]) * length for n, length in enumerate(lengths)]
        taken = next((n for n, length in enumerate(lengths) if length > most), len(lengths))
        shard = b"".join(map(frame, records))
        run = Feed(shard, records[:taken], most=most)
        try:
            for stop, more in sorted(cuts):
                run.step(max(run.fed, min(stop, len(shard))), more=more)
            finish(run, len(shard))
        except RecordTooLarge as error:
            assert error.record == taken < len(records)
        else:
            assert taken == len(records)
        assert run.got == records[:taken]

    @pytest.mark.parametrize(
        ("length", "size", "kind"),
        [
            (2**62, None, CorruptLength),
            (2**62, 1000, CorruptLength),
            (2**46, None, RecordTooLarge),
            (2**46, 1000, TruncatedShard),
            (500, None, RecordTooLarge),
            (500, 1000, RecordTooLarge),
        ],
    )
    def test_what_no_object_holds_and_what_this_one_does_not_are_other_faults(
        self, length: int, size: int | None, kind: type[DataError]
    ) -> None:
        run = Feed(header(length) + b"payload", [], most=100)
        run.scanner.size = size
        with pytest.raises(DataError) as caught:
            finish(run, 19)
        assert type(caught.value) is kind

    @pytest.mark.parametrize("check_crc", [True, False])
    @pytest.mark.parametrize("payload", [b"payload", bytes(600)])
    def test_a_length_that_is_damaged_is_not_believed(
        self, check_crc: bool, payload: bytes
    ) -> None:
        run = Feed(header(500, right=False) + payload, [], most=100, check_crc=check_crc)
        with pytest.raises(CorruptLength):
            finish(run, 12 + len(payload))


class TestTensorFlow:
    @pytest.mark.parametrize("name", SHARDS)
    @pytest.mark.parametrize("step", [13, 4096, 1 << 20])
    def test_reads_what_tensorflow_wrote(self, name: str, step: int) -> None:
        shard = shard_bytes(name)
        expected = SHARDS[name]
        run = Feed(shard, [])
        stops = range(step, len(shard), step) if len(shard) < 5000 * step else []
        for stop in (*stops, len(shard)):
            run.step(stop, more=False)
        run.scanner.finish()
        assert [len(record) for record in run.got] == [record["length"] for record in expected]
        digests = [hashlib.sha256(record).hexdigest() for record in run.got]
        assert digests == [record["sha256"] for record in expected]

    @pytest.mark.parametrize("name", SHARDS)
    def test_writes_what_tensorflow_wrote(self, name: str) -> None:
        shard = shard_bytes(name)
        run = Feed(shard, [])
        run.step(len(shard), more=False)
        assert b"".join(map(frame, run.got)) == shard


def test_frames_of_every_buffer() -> None:
    assert frame(b"abc") == frame(bytearray(b"abc")) == frame(memoryview(b"xabc")[1:])
