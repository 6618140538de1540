"""The objects of an audit log: each holds some stretches of steps, and lists of records as runs."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.errors import DataError, MalformedAudit, StateError
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import MOST_SKIPPED
from streamrec.plan.state.resume_point import read_resume_point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint

    Numbers = npt.NDArray[np.int64]

VERSION = 1
SEVERAL, LISTED, MASKED, SKIPPED = 1, 2, 4, 8
DIGEST = 16
"""Bytes of a digest: 2^64 tries find two steps with one digest, 2^128 a step with a given one."""
LARGEST = 1 << 26
"""Bytes of the largest frame, and of the largest stretch of entries."""
MOST_ENTRIES = 1 << 20
"""The most entries of an object, so that a hostile one takes some hundred MB at most."""
LAST_STEP = 1 << 48


class LoggedStep(NamedTuple):
    """The records that one step delivered or, for single records, successive steps."""

    step: int
    steps: int
    digest: bytes
    """:func:`digest_of` all records; empty if the steps were skipped."""
    listed: RecordList | None = None
    """The delivered records; ``None``: the index gives them, and the digest proves them."""
    masked: RecordList | None = None
    """The damaged and excluded records; ``None``: there are none."""

    @property
    def is_skipped(self) -> bool:
        """True if ``stream.skip`` left the steps out."""
        return not self.digest

    def encode(self) -> bytes:
        """Encode it, without its step."""
        if self.is_skipped:
            return bytes((SKIPPED,)) + varints(np.array([self.steps]))
        lists = [(LISTED, self.listed), (MASKED, self.masked)]
        flags = sum(flag for flag, runs in lists if runs is not None)
        several = self.steps > 1
        parts = [bytes((flags | (SEVERAL if several else 0),))]
        parts += [varints(np.array([self.steps]))] if several else []
        parts += [self.digest, *(runs.encode() for _, runs in lists if runs is not None)]
        return b"".join(parts)


def digest_of(shards: npt.NDArray[Any], records: npt.NDArray[Any]) -> bytes:
    """Return the digest of records in their order, by their shards' numbers and their own."""
    digest = blake2b(digest_size=DIGEST, person=b"streamrec audit")
    digest.update(np.ascontiguousarray(shards, "<i4").data)
    digest.update(np.ascontiguousarray(records, "<i8").data)
    return digest.digest()


def entry_of(batch: Batch, step: int, rows: slice | None = None) -> LoggedStep:
    """Return the entry of a batch, or of some rows of one that carries single records.

    Args:
        batch: The batch.
        step: Its step, or that of the first of these rows.
        rows: The rows, of which each is a step; ``None``: the batch is one step.
    """
    own = rows or slice(None)
    shards, records = batch.origin.shards[own], batch.origin.records[own]
    is_there = None if batch.mask is None else batch.mask[own]
    masked = None
    if is_there is not None and not is_there.all():
        named = shards >= 0  # all but padding
        is_there, shards, records = is_there[named], shards[named], records[named]
        if not is_there.all():
            masked = RecordList.of(shards[~is_there], records[~is_there])
    listed = None
    if not batch.next_position.fingerprint.is_computable:
        delivered = slice(None) if masked is None else is_there
        listed = RecordList.of(shards[delivered], records[delivered])
    steps = 1 if rows is None else rows.stop - rows.start
    return LoggedStep(step, steps, digest_of(shards, records), listed, masked)


@dataclass
class Stretch:
    """Successive steps of one rank."""

    step: int
    """The first of them."""
    state: dict[str, Any]
    """The state before them."""
    entries: list[LoggedStep] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The step after them."""
        return self.entries[-1].step + self.entries[-1].steps if self.entries else self.step

    @property
    def point(self) -> ResumePoint:
        """The place before them."""
        return read_resume_point(self.state)

    def encode(self) -> bytes:
        """Encode it as two frames."""
        head = {"step": self.step, "state": self.state}
        content = b"".join(entry.encode() for entry in self.entries)
        return frame(json.dumps(head).encode()) + frame(zlib.compress(content))


@dataclass
class Part:
    """The content of one object of a log."""

    header: dict[str, Any]
    """``rank``, ``world_size``, ``fingerprint`` and all else that :mod:`.audit_log` writes."""
    stretches: list[Stretch]

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that determines the order of the records."""
        return Fingerprint.from_dict(self.header["fingerprint"])

    def encode(self) -> bytes:
        """Encode the object."""
        head = {**self.header, "audit": VERSION, "stretches": len(self.stretches)}
        stretches = (stretch.encode() for stretch in self.stretches)
        return b"".join([frame(json.dumps(head).encode()), *stretches])

    @classmethod
    def parse(cls, data: bytes, url: str) -> Part:
        """Parse an object, which is checked as untrusted input.

        Raises:
            MalformedAudit: It is damaged, or not an object of an audit log.
        """
        try:
            frames = list(_frames(data, url))
            if not frames:
                raise ValueError("it is empty")  # noqa: TRY301 - told as all others are
            header = _mapping(frames[0])
            _check_header(header)
            if len(frames) != 1 + 2 * _number(header, "stretches"):
                raise ValueError("its end is missing")  # noqa: TRY301 - told as all others are
            pairs = zip(frames[1::2], frames[2::2], strict=True)
            return cls(header, [_stretch(_mapping(head), body) for head, body in pairs])
        except DataError as error:
            raise MalformedAudit(
                "this object of an audit log is damaged; restore it from a copy, or delete it and "
                "lose the proof for its steps",
                url=url,
                offset=error.offset,
            ) from None
        except (ValueError, RecursionError, StateError) as error:
            raise MalformedAudit(
                f"this is not an object of an audit log: {error}; take it out of the log's "
                "directory, or restore it from a copy",
                url=url,
            ) from None


def _frames(data: bytes, url: str) -> Iterator[bytes]:
    """Yield the payloads of the frames.

    Raises:
        DataError: One is damaged.
    """
    scanner = FrameScanner(url=url, most=LARGEST)
    scanner.size = len(data)
    blocks, _ = scanner.scan(np.frombuffer(data, np.uint8), more=False)
    scanner.finish()
    for block in blocks:
        for begin, length in zip(block.offsets.tolist(), block.lengths.tolist(), strict=True):
            yield block.buffer[begin : begin + length].tobytes()


def _mapping(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("a frame is not a mapping")  # noqa: TRY004 - told as all other faults are
    return value


def _check_header(header: dict[str, Any]) -> None:
    if header.get("audit") != VERSION:
        raise ValueError(
            f"its version is {header.get('audit')!r}, but this streamrec reads {VERSION}"
        )
    rank, world_size = (_number(header, name) for name in ("rank", "world_size"))
    if rank >= world_size:
        raise ValueError(f"it is of rank {rank} of {world_size}")
    Fingerprint.from_dict(header.get("fingerprint"))
    if not isinstance(header.get("settings"), dict):
        raise ValueError("it has no settings")  # noqa: TRY004 - as above


def _number(mapping: dict[str, Any], name: str) -> int:
    value = mapping.get(name)
    if type(value) is not int or not 0 <= value < LAST_STEP:
        raise ValueError(f"{name} is not a number of a log")
    return value


def _stretch(head: dict[str, Any], body: bytes) -> Stretch:
    step, state = _number(head, "step"), head.get("state")
    read_resume_point(state)
    stretch = Stretch(step, state or {})
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(body, LARGEST)
    except zlib.error as error:
        raise ValueError(error) from None
    if not inflate.eof or inflate.unused_data:
        raise ValueError("its entries are incomplete, or too many")
    at = 0
    while at < len(content):
        entry, at = _entry(content, at, stretch.end)
        stretch.entries.append(entry)
        if len(stretch.entries) > MOST_ENTRIES:
            raise ValueError("its entries are too many")
    return stretch


def _entry(content: bytes, at: int, step: int) -> tuple[LoggedStep, int]:
    """Decode the entry at a byte; return it and the byte after it."""
    flags, at = content[at], at + 1
    if flags & ~(SEVERAL | LISTED | MASKED | SKIPPED) or (flags & SKIPPED and flags != SKIPPED):
        raise ValueError(f"an entry has the flags {flags}")
    steps, digest = 1, b""
    if flags & (SEVERAL | SKIPPED):
        steps, at = read_varint(content, at)
    if not flags & SKIPPED:
        digest, at = content[at : at + DIGEST], at + DIGEST
    lists: dict[int, RecordList] = {}
    for flag in (LISTED, MASKED):
        if flags & flag:
            size, at = read_varint(content, at)
            lists[flag], at = RecordList.decode(content[at : at + size]), at + size
    most = LAST_STEP if flags & SKIPPED else MOST_SKIPPED
    if at > len(content) or not 0 < steps <= most:
        raise ValueError("an entry is incomplete")
    return LoggedStep(step, steps, digest, lists.get(LISTED), lists.get(MASKED)), at


WIDEST = 9
"""Bytes of the longest varint, which has 63 bits."""
TOO_LARGE = 1 << 48
"""The least sum of numbers that no list of runs has."""
MOST_RECORDS = 1 << 24
"""The most records of a list."""


class RecordList(NamedTuple):
    """Records, sorted, in runs of successive ones of a shard: int64 ``[runs]`` each."""

    shards: Numbers
    first: Numbers
    counts: Numbers

    @classmethod
    def of(cls, shards: npt.NDArray[Any], records: npt.NDArray[Any]) -> RecordList:
        """Collect records; one that comes twice is in two runs."""
        order = np.lexsort((records, shards))
        shards, records = shards[order].astype(np.int64), records[order].astype(np.int64)
        # No shard has the number -1.
        is_first = np.diff(shards, prepend=-1) != 0
        begins = np.flatnonzero(is_first | (np.diff(records, prepend=-1) != 1))
        counts = np.diff(begins, append=len(shards))
        return cls(shards[begins], records[begins], counts)

    def encode(self) -> bytes:
        """Encode them as varints, of which the first is the number of bytes of all others.

        All shards come first, as distances from the run before; then the first record of each run,
        as the distance from the last record of the run before in the same shard; then the number of
        records of each run, minus 1.
        """
        same = np.diff(self.shards, prepend=-1) == 0
        last = np.roll(self.first + self.counts - 1, 1)
        columns = (
            np.diff(self.shards, prepend=0),
            np.where(same, self.first - last, self.first),
            self.counts - 1,
        )
        content = varints(np.concatenate(columns))
        return varints(np.array([len(content)])) + content

    @classmethod
    def decode(cls, content: bytes) -> RecordList:
        """Decode the varints that :meth:`encode` writes after their number of bytes.

        Raises:
            ValueError: It is something else.
        """
        numbers = from_varints(content)
        if len(numbers) % 3:
            raise ValueError("a list of runs is incomplete")
        steps, gaps, counts = numbers.reshape(3, -1)
        # As floats, whose sum does not wrap around: then no sum below does.
        if numbers.sum(dtype=np.float64) >= TOO_LARGE or counts.sum() + len(counts) > MOST_RECORDS:
            raise ValueError("records are too many, or their numbers too large")
        shards = np.cumsum(steps)
        # In a shard, the first record of a run is the sum of all gaps and lengths before it.
        begins = np.diff(shards, prepend=-1) != 0
        total = np.cumsum(gaps) + np.cumsum(counts) - counts
        before = np.where(begins, total - gaps, 0)
        first = total - np.maximum.accumulate(before) if len(total) else total
        return cls(shards, first, counts + 1)

    def pairs(self) -> tuple[Numbers, Numbers]:
        """Return the shard and the number of each record: int64 ``[records]`` each."""
        inside = np.arange(self.counts.sum()) - np.repeat(
            np.cumsum(self.counts) - self.counts, self.counts
        )
        return np.repeat(self.shards, self.counts), np.repeat(self.first, self.counts) + inside


def varints(numbers: Numbers) -> bytes:
    """Encode numbers from 0 up as varints (LEB128)."""
    limits = 1 << np.arange(7, 7 * WIDEST, 7)
    widths = np.searchsorted(limits, numbers, "right") + 1
    begins = np.cumsum(widths) - widths
    octets = np.empty(int(widths.sum()), np.uint8)
    for place in range(int(widths.max(initial=0))):
        has_one = widths > place
        more = (widths[has_one] > place + 1) << 7
        octets[begins[has_one] + place] = numbers[has_one] >> 7 * place & 0x7F | more
    return octets.tobytes()


def from_varints(content: bytes) -> Numbers:
    """Decode varints.

    Raises:
        ValueError: The last one is incomplete, or one is too long.
    """
    octets = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if len(octets) and (not len(ends) or ends[-1] != len(octets) - 1):
        raise ValueError("a number is incomplete")
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    widths = ends - begins + 1
    if widths.max(initial=0) > WIDEST:
        raise ValueError("a number is too long")
    places = np.arange(len(octets)) - np.repeat(begins, widths)
    parts = (octets & 0x7F).astype(np.int64) << 7 * places
    return np.add.reduceat(parts, begins) if len(begins) else parts


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at a byte; return it and the byte after it.

    Raises:
        ValueError: It is incomplete or too long.
    """
    number = 0
    for place, byte in enumerate(content[at : at + WIDEST]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number is incomplete")


Spans: TypeAlias = list[tuple[int, int]]
"""Steps, each span without its end."""


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return spans that do not overlap and have all steps of some spans, in their order."""
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > begin:
            joined.append((begin, end))
    return joined


def common(each: Sequence[Spans]) -> Spans:
    """Return the steps that all of some ranks have."""
    common = each[0]
    for other in each[1:]:
        pairs = ((max(a, c), min(b, d)) for a, b in common for c, d in other)
        common = union(pair for pair in pairs if pair[0] < pair[1])
    return common
