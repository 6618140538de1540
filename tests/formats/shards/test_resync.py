from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.errors import CorruptLength, CorruptRecord, DataError, RecordTooLarge, TruncatedShard
from streamrec.formats.shards import resync
from streamrec.formats.shards.resync import length_of_crc
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.kernel.contract import fresh, mask, unmask
from tests.formats.damaged_shards import Gap, Whole, damaged_shards, gaps_of, oracle

if TYPE_CHECKING:
    from streamrec.formats.shards.tfrecord import DamagedSpan
    from streamrec.values.columns import ByteArray

pytestmark = pytest.mark.both_kernels

A, B, C = frame(b"a" * 20), frame(b"b" * 30), frame(b"c" * 40)
NESTED = frame(A + B)


class Reader:
    """Goes on behind every fault, as a lane does, and checks that nothing is left out."""

    def __init__(self, shard: bytes, *, size_known: bool, **options: Any) -> None:
        self.shard = np.frombuffer(shard, np.uint8)
        self.scanner = FrameScanner(url="s3://b/k", **options)
        self.scanner.size = len(shard) if size_known else None
        self.whole: list[Whole] = []
        self.damaged: list[DamagedSpan] = []
        self.fed = 0

    def read(self, bounds: list[int], *, in_place: bool) -> None:
        for stop in bounds:
            while self.fed < stop:
                last = not in_place or stop == len(self.shard)
                if not self._step(stop, more=not last):
                    break
        self.scanner.size = len(self.shard)
        while not self._is_finished():
            self._step(self.fed, more=False)

    def _step(self, stop: int, *, more: bool) -> bool:
        try:
            blocks, consumed = self.scanner.scan(self.shard[self.fed : stop], more=more)
        except DataError as fault:
            self.scanner.recover(fault)
            return True
        self.fed += consumed
        went_on = consumed > 0 or self.scanner.pending or bool(self.scanner.damaged)
        self.damaged += self.scanner.damaged
        self.scanner.damaged.clear()
        for block in blocks:
            for k, (offset, length) in enumerate(zip(block.offsets, block.lengths, strict=True)):
                payload = block.buffer[offset : offset + length].tobytes()
                begin = block.base + int(offset) - 12
                self.whole.append(Whole(begin, block.first_ordinal + k, payload))
        return went_on

    def _is_finished(self) -> bool:
        if self.scanner.searching:
            return False
        try:
            self.scanner.finish()
        except DataError as fault:
            self.scanner.recover(fault)
        return not self.scanner.searching

    def check(self) -> None:
        shard = self.shard.tobytes()
        assert (self.whole, gaps_of(self.damaged)) == oracle(shard)
        assert all(part.content.tobytes() == shard[part.offset : part.end] for part in self.damaged)
        kept = sum(16 + len(record.payload) for record in self.whole)
        assert kept + sum(len(part.content) for part in self.damaged) == len(shard)


def read(shard: bytes) -> Reader:
    reader = Reader(shard, size_known=True)
    reader.read([len(shard)], in_place=True)
    reader.check()
    return reader


@given(damaged_shards(), st.data(), st.booleans(), st.booleans())
@example(NESTED[:8] + b"\1" + NESTED[9:] + C, None, False, False)
def test_recovers_what_can_be_proven_however_the_bytes_come(
    shard: bytes, data: st.DataObject | None, in_place: bool, size_known: bool
) -> None:
    cuts = (
        data.draw(st.lists(st.integers(0, len(shard)), max_size=8)) if data else range(len(shard))
    )
    reader = Reader(shard, size_known=size_known)
    reader.read([*sorted(set(cuts)), len(shard)], in_place=in_place)
    reader.check()


@given(damaged_shards(most=3, damages=2))
def test_byte_by_byte(shard: bytes) -> None:
    reader = Reader(shard, size_known=True)
    reader.read(list(range(len(shard) + 1)), in_place=False)
    reader.check()


@given(shard=damaged_shards(), part=st.integers(16, 60), data=st.data())
def test_parts_do_not_depend_on_how_the_bytes_come(
    shard: bytes, part: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resync, "LARGEST_PART", part)
        patched.setattr(resync, "FIRST_STEP", data.draw(st.integers(1, 40)))
        patched.setattr(resync, "STRIDE", data.draw(st.integers(1, 40)))
        at_once, in_pieces = read(shard), Reader(shard, size_known=False)
        cuts = data.draw(st.sets(st.integers(0, len(shard))))
        in_pieces.read(sorted({*cuts, len(shard)}), in_place=False)
        in_pieces.check()
    assert [(one.offset, one.end, one.records) for one in in_pieces.damaged] == [
        (one.offset, one.end, one.records) for one in at_once.damaged
    ]
    assert all(len(damaged.content) <= part for damaged in at_once.damaged if not damaged.exact)


# -- each kind of damage by itself -----------------------------------------------------------------


def flipped(shard: bytes, place: int) -> bytes:
    return shard[:place] + bytes([shard[place] ^ 4]) + shard[place + 1 :]


@pytest.mark.parametrize("counts", [True, False])
def test_what_nobody_can_count_is_one_record_or_none(counts: bool) -> None:
    scanner = FrameScanner(url="s3://b/k", counts_gaps=counts)
    shard = np.frombuffer(A + b"??" + B + flipped(C, 14) + A, np.uint8)
    scanner.size = len(shard)
    numbers: list[int] = []
    fed = 0
    while fed < len(shard) or scanner.pending or scanner.searching:
        try:
            blocks, consumed = scanner.scan(shard[fed:], more=False)
        except DataError as fault:
            scanner.recover(fault)
            continue
        fed += consumed
        numbers += [block.first_ordinal for block in blocks]
    assert [(damaged.exact, damaged.record) for damaged in scanner.damaged] == [
        (False, 1),
        (True, 2 + counts),
    ]
    assert numbers == [0, 1 + counts, 3 + counts]


@pytest.mark.parametrize("place", range(len(A), len(A + B)))
def test_a_flipped_bit_anywhere_costs_the_one_record(place: int) -> None:
    reader = read(flipped(A + B + C, place))
    assert [record.number for record in reader.whole] == [0, 2]
    (damaged,) = reader.damaged
    assert (damaged.offset, damaged.end, damaged.record) == (len(A), len(A + B), 1)
    assert damaged.exact


@pytest.mark.parametrize(
    ("place", "kind"),
    [(0, CorruptLength), (8, CorruptLength), (12, CorruptRecord), (len(A) - 1, CorruptRecord)],
)
def test_the_fault_says_what_was_found(place: int, kind: type[DataError]) -> None:
    (damaged,) = read(flipped(A + B, place)).damaged
    assert type(damaged.fault) is kind


def test_a_record_that_holds_a_tfrecord_is_one_record_wherever_it_is_damaged() -> None:
    for place in range(len(NESTED)):
        reader = read(flipped(NESTED, place) + C)
        assert [record.payload for record in reader.whole] == [b"c" * 40]
        assert [damaged.exact for damaged in reader.damaged] == [True]


def test_what_is_inside_is_taken_for_records_where_nothing_tells() -> None:
    reader = read(flipped(flipped(NESTED, 0), 8) + C)
    assert [record.payload[:1] for record in reader.whole] == [b"a", b"b", b"c"]
    assert gaps_of(reader.damaged) == [
        Gap(0, 12, 0, False),
        Gap(len(NESTED) - 4, len(NESTED), 3, False),
    ]


def test_both_the_length_and_its_crc_are_damaged() -> None:
    reader = read(A + flipped(flipped(B, 0), 8) + C)
    assert [record.number for record in reader.whole] == [0, 2]
    assert [damaged.exact for damaged in reader.damaged] == [False]


@pytest.mark.parametrize("count", [1, 11, 12, 15, 16, 100, 5000])
@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"x"])
def test_garbage_between_records(count: int, byte: bytes) -> None:
    reader = read(A + byte * count + B)
    assert [record.payload[:1] for record in reader.whole] == [b"a", b"b"]
    assert gaps_of(reader.damaged) == [Gap(len(A), len(A) + count, 1, False)]


@pytest.mark.parametrize("left", range(1, len(B)))
def test_a_shard_that_was_cut(left: int) -> None:
    reader = read(A + B[:left])
    assert [record.payload for record in reader.whole] == [b"a" * 20]
    (damaged,) = reader.damaged
    assert (damaged.offset, damaged.end, damaged.exact) == (len(A), len(A) + left, False)
    assert type(damaged.fault) is TruncatedShard


def test_nothing_but_garbage() -> None:
    reader = read(b"no TFRecord file at all, but longer than a header")
    assert not reader.whole
    assert len(reader.damaged) == 1


def test_a_length_that_no_object_has_is_not_believed() -> None:
    shard = A + lying_header(1 << 50) + B
    assert [record.payload[:1] for record in read(shard).whole] == [b"a", b"b"]


def test_many_damaged_records_behind_each_other() -> None:
    damaged = flipped(A, 15) * 300
    reader = read(damaged + B)
    assert len(reader.damaged) == 300
    assert all(damaged.exact for damaged in reader.damaged)
    assert [record.number for record in reader.whole] == [300]


def test_the_work_is_bounded_where_every_header_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intact headers end to end, each of a payload that reaches over all those behind it."""
    header = lying_header(6000)
    checked = []
    intact = resync._is_payload_intact

    def counted(held: np.ndarray, place: int, size: int) -> bool:
        checked.append(size)
        return intact(held, place, size)

    monkeypatch.setattr(resync, "_is_payload_intact", counted)
    shard = b"?" + header * 2000 + bytes(6000)
    reader = Reader(shard, size_known=True)
    reader.read([len(shard)], in_place=True)
    assert sum(checked) < (resync.MOST_TRIES + 2) * len(shard)
    assert sum(len(damaged.content) for damaged in reader.damaged) == len(shard)


# -- the answers of a search -----------------------------------------------------------------------


def lost_bytes(lost: bytes) -> resync.LostBytes:
    """Give a search the bytes that it asks for: always more, and never more than there are."""
    search, answer = resync.Resync(), 1
    while True:
        held = np.frombuffer(lost[:answer], np.uint8)
        found = search.look(held, len(lost))
        if isinstance(found, resync.LostBytes):
            return found
        assert len(held) < found <= len(lost)
        answer = found


def lying_header(length: int) -> bytes:
    """Return a header whose length matches its CRC; no payload follows it."""
    header = struct.pack("<Q", length)
    return header + struct.pack("<I", kernel.masked_crc32c(header))


@pytest.mark.parametrize("left", range(1, len(B)))
def test_a_cut_frame_behind_damage_is_lost_with_it(left: int) -> None:
    lost = b"?" * 20 + B[:left]
    assert lost_bytes(lost) == resync.LostBytes(len(lost), 1, exact=False, done=True)


def test_a_cut_frame_of_many_steps_is_lost_with_the_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "FIRST_STEP", 5)
    monkeypatch.setattr(resync, "LARGEST_STEP", 7)
    lost = b"?" * 50 + C[:-1]
    assert lost_bytes(lost) == resync.LostBytes(len(lost), 1, exact=False, done=True)


@pytest.mark.parametrize("count", [1, 2, resync.MOST_TRIES])
def test_a_record_behind_headers_that_lie_is_found(count: int) -> None:
    lost = b"?" + lying_header(60) * count + B + C
    assert lost_bytes(lost) == resync.LostBytes(1 + 12 * count, 1, exact=False, done=True)


def test_a_header_that_lies_after_many_others_is_believed() -> None:
    before = b"?" + lying_header(60) * resync.MOST_TRIES
    skipped = (lying_header(60) + B).ljust(76, b"?")
    assert lost_bytes(before + skipped + A).size == len(before + skipped)


# -- arithmetic ------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 32) - 1))
def test_a_length_is_found_by_its_crc(length: int) -> None:
    assert length_of_crc(kernel.crc32c(struct.pack("<Q", length))) == length


@given(st.integers(0, (1 << 32) - 1))
def test_unmask_is_the_inverse_of_mask(crc: int) -> None:
    assert unmask(mask(crc)) == crc


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=30), st.integers(-1, 40))
def test_headers_are_found_at_any_offset(records: list[bytes], junk: bytes, less: int) -> None:
    shard = junk + b"".join(map(frame, [b"", *records])) + junk
    held = np.frombuffer(shard, np.uint8)
    left = None if less < 0 else len(shard) + less
    found = resync._intact_headers(held, 0, max(0, len(held) - 15), left)
    lengths = {place: struct.unpack_from("<Q", shard, place)[0] for place in found}
    starts = itertools.accumulate((len(record) + 16 for record in records), initial=len(junk) + 16)
    for start, record in zip(starts, records, strict=False):
        assert lengths[start] == len(record)
    for place, length in lengths.items():
        stored = struct.unpack_from("<I", shard, place + 8)[0]
        assert kernel.masked_crc32c(struct.pack("<Q", length)) == stored


# -- what may not be held --------------------------------------------------------------------------


@pytest.mark.parametrize("size_known", [True, False])
@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("cut", [0, 30, 300])
def test_a_record_that_is_too_large_is_passed_over_part_by_part(
    size_known: bool, step: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync, "LARGEST_PART", 60)
    monkeypatch.setattr("streamrec.formats.shards.tfrecord.LARGEST_PART", 60)
    monkeypatch.setattr(resync, "FIRST_STEP", 30)
    monkeypatch.setattr(resync, "LARGEST_STEP", 30)
    shard = A + frame(b"x" * 400) + (B if not cut else b"")
    shard = shard[: len(shard) - cut]

    def allocate(size: int) -> ByteArray:
        assert size <= 120
        return fresh(size)

    reader = Reader(shard, size_known=size_known, most=100, allocate=allocate, share=1)
    reader.read([*range(0, len(shard), step), len(shard)], in_place=False)
    assert [(one.offset, one.number) for one in reader.whole] == [
        (0, 0),
        *([(len(A) + 416, 2)] if not cut else []),
    ]
    assert (
        b"".join(damaged.content.tobytes() for damaged in reader.damaged)
        == shard[len(A) : len(A) + 416]
    )
    assert sum(damaged.records for damaged in reader.damaged) == 1
    kind = TruncatedShard if cut and size_known else RecordTooLarge
    assert {type(damaged.fault) for damaged in reader.damaged} == {kind}


@pytest.mark.parametrize("size_known", [True, False])
def test_a_search_that_meets_one_ends_there(size_known: bool) -> None:
    """The limit forbids to hold the whole record, and to check that it is intact."""
    shard = A + b"??" + frame(b"x" * 400_000) + B

    def allocate(size: int) -> ByteArray:
        assert size < 100_000
        return fresh(size)

    scanner = FrameScanner(url="s3://b/k", most=100, allocate=allocate)
    scanner.size = len(shard) if size_known else None
    fed, faults = 0, []
    while fed < len(shard):
        try:
            fed += scanner.scan(np.frombuffer(shard, np.uint8)[fed : fed + 5000], more=False)[1]
        except DataError as fault:
            faults.append((type(fault), fault.offset))
            if isinstance(fault, RecordTooLarge):
                break
            scanner.recover(fault)
    assert faults == [(CorruptLength, len(A)), (RecordTooLarge, len(A) + 2)]


def test_the_bounds_are_those_that_the_page_of_damage_names() -> None:
    assert (resync.LARGEST_GUESS, resync.LARGEST_PART) == (16 << 20, 16 << 20)
    assert resync.LARGEST == 128 << 40
