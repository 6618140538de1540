"""The position of a rank in a stream, with the fingerprint of the stream.

Every batch carries one. It is a few numbers a lane, never a record's content, so that it can be
saved as plain JSON. A saved position is untrusted input: :meth:`Position.from_dict` checks it all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamrec.errors import ConfigError, MalformedPosition, OtherVersion
from streamrec.plan.fingerprint import Fingerprint, digest, names_digest, relative_names
from streamrec.plan.packed import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Fingerprint", "Position", "names_digest", "object_tag", "relative_names"]

VERSION = 2
COORDINATES = ("extent", "offset", "record", "window", "row", "taken", "part")
NUMBERS = ("step", "run_epoch", "epoch", "skip")
EXTENT, OFFSET, RECORD, WINDOW, ROW, TAKEN, PART = range(7)
LARGEST = (1 << 48) - 1
"""The largest number: no shard is longer, and sums and products of a few stay below 2^63."""
LAST_EPOCH = 1 << 31
"""The largest epoch: beyond any run, and the numbers of extents stay below 2^63."""
MOST_SKIPPED = 1 << 16
"""The most single records that travel together; it is far more than ever do."""
MOST_LANES = 1 << 16
MOST_COMPONENTS = 1 << 8
MOST_PLACES = 1 << 18
"""Components times lanes: no budget has memory for the first ranges of more shards."""
MOST_TAG = (1 << 20) - 1
"""The largest tag: one change in a million is not noticed, because both tags are equal."""

_NO_LANES = np.zeros((len(COORDINATES), 0), np.int64)
_NO_SOURCES = np.zeros((WINDOW, 0), np.int64)
_NO_TAGS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Position:
    """The coordinates of one rank's lanes; column ``j`` is lane ``rank + j*world_size``."""

    fingerprint: Fingerprint
    step: int
    """Batches (or single records) that this rank has delivered since the stream's very start."""
    rank: int
    world_size: int
    run_epoch: int
    """The epoch at which the present run began."""
    epoch: int
    """The lowest epoch of the lanes' next records."""
    lanes: npt.NDArray[np.int64]
    """int64 ``[7, own lanes]``, with the rows of ``COORDINATES``:

    - ``extent``, ``offset``, ``record``: the extent, byte and record at which the lane's window
      begins; without shuffle, those of its next record. For a mix: its epoch, 0, and the number in
      the epoch of its record. For a lane with several shards open: its epoch, the bytes taken in a
      open_shard's turn, and the turn's number in the epoch.
    - ``window``: the window's number in its epoch.
    - ``row``: the rows of the window that are done.
    - ``taken``: all records that the lane has ever delivered.
    - ``part``: with packs, the delivered part of what is packed from there on; without, the done
      rows of the window that were damaged and left out."""
    tags: npt.NDArray[np.int64]
    """int64: for each lane, or each column of ``sources``, the tag of the version of the object in
    whose middle it is; 0 where it is in none, or the version is not known."""
    skip: int = 0
    """Records behind this position that are delivered too (in a stream of single records)."""
    since: tuple[int, int] | None = None
    """By record: an epoch, and the step at which all lanes were at its beginning. With ``step``
    they determine every rank's position, so ``lanes`` and ``tags`` are empty. ``None`` by shard,
    and where a filter or packs make the lanes' counts unknown."""
    sources: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_SOURCES)
    """int64 ``[3, components * own lanes]``: the extent, byte and record of the next record in each
    lane, component by component of a mix, or open_shard by open_shard; without columns if there are
    neither."""

    @property
    def points(self) -> npt.NDArray[np.int64]:
        """int64 ``[3, ...]``: the extents, bytes and records from which shards are read."""
        return self.sources if self.sources.size else self.lanes[:WINDOW]

    @property
    def components(self) -> int:
        """The number of a mix's components, or of a lane's open_shards; 1 where there are none."""
        return max(1, int(self.sources.shape[1]) // max(1, int(self.lanes.shape[1])))

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64 ``[rows, own lanes]``: ``lanes``, ``sources``, then ``tags``; no rows by record.

        Positions of one rank in one stream differ only in these and in :attr:`numbers`.
        """
        owned = self.lanes.shape[1]
        if not owned:
            return _NO_LANES[:0]
        split = self.sources.reshape(-1, owned), self.tags.reshape(-1, owned)
        return np.concatenate([self.lanes, *split])

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of ``NUMBERS`` and, by record, ``since``, by name."""
        since = {} if self.since is None else {"since": list(self.since)}
        return {**{name: getattr(self, name) for name in NUMBERS}, **since}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.step, self.rank, self.world_size, self.skip))

    def at(
        self,
        step: int,
        epoch: int,
        lanes: npt.NDArray[np.int64],
        tags: npt.NDArray[np.int64],
        sources: npt.NDArray[np.int64] | None = None,
    ) -> Position:
        """Return the position of this rank in this run at another step, with those arrays."""
        return Position(
            self.fingerprint,
            step,
            self.rank,
            self.world_size,
            self.run_epoch,
            epoch,
            lanes,
            tags,
            sources=_NO_SOURCES if sources is None else sources,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, a few KB at most."""
        common = {
            "version": VERSION,
            "fingerprint": self.fingerprint.to_dict(),
            "rank": self.rank,
            "world_size": self.world_size,
            **self.numbers,
        }
        if self.since is not None:
            return common
        count = {"components": self.components} if self.sources.size else {}
        return {**common, **count, "packed": pack(self.rows)}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Decode the data of :meth:`to_dict`, which is checked as untrusted input.

        Raises:
            OtherVersion: A later version of streamrec saved it.
            MalformedPosition: The data is not a state of streamrec.
        """
        check_version(data)
        fingerprint = Fingerprint.from_dict(data.get("fingerprint"))
        rank, world_size = _number(data, "rank"), _number(data, "world_size")
        owned = _owned_lanes(fingerprint.lanes, rank, world_size)
        rows = _NO_LANES
        if not fingerprint.by_record:
            rows = _rows(data, owned, _components(data, owned) if fingerprint.has_sources else 0)
        return cls.of(fingerprint, rank, world_size, data, rows)

    @classmethod
    def of(
        cls,
        fingerprint: Fingerprint,
        rank: int,
        world_size: int,
        numbers: Mapping[str, Any],
        rows: npt.NDArray[np.int64],
    ) -> Self:
        """Create a position from :attr:`numbers` and :attr:`rows`, both checked as untrusted input.

        Args:
            fingerprint: The fingerprint of the stream.
            rank: The rank.
            world_size: The number of ranks.
            numbers: The numbers; other keys are ignored.
            rows: The rows, which the position keeps; by record they are ignored.

        Raises:
            MalformedPosition: The numbers or rows are something else.
        """
        by_record = fingerprint.by_record
        lanes, sources, tags = _NO_LANES, _NO_SOURCES, _NO_TAGS
        if not by_record:
            owned = _owned_lanes(fingerprint.lanes, rank, world_size)
            lanes, sources, tags = _standing(rows, owned, fingerprint)
        return cls(
            fingerprint,
            _number(numbers, "step"),
            rank,
            world_size,
            _number(numbers, "run_epoch", LAST_EPOCH),
            _number(numbers, "epoch", LAST_EPOCH),
            lanes,
            tags,
            _number(numbers, "skip", MOST_SKIPPED if fingerprint.global_batch is None else 0),
            _since(numbers) if by_record else None,
            sources,
        )

    @classmethod
    def start(
        cls,
        fingerprint: Fingerprint,
        first_extents: Sequence[int],
        *,
        rank: int,
        world_size: int,
        epoch: int = 0,
        step: int = 0,
    ) -> Self:
        """Create the position at the beginning of an epoch.

        Args:
            fingerprint: The fingerprint of the stream.
            first_extents: The number of each own lane's first extent in the epoch, component by
                component of a mix, or open_shard by open_shard.
            rank: The rank.
            world_size: The number of ranks.
            epoch: The epoch.
            step: The number of steps before it.
        """
        if fingerprint.by_record:
            since = epoch, step
            return cls(
                fingerprint, step, rank, world_size, epoch, epoch, _NO_LANES, _NO_TAGS, since=since
            )
        lanes = np.zeros((len(COORDINATES), fingerprint.lanes // world_size), np.int64)
        sources = None
        if fingerprint.has_sources:
            sources = np.zeros((WINDOW, len(first_extents)), np.int64)
        lanes[EXTENT] = first_extents if sources is None else epoch
        tags = np.zeros(len(first_extents), np.int64)
        position = cls(fingerprint, step, rank, world_size, epoch, epoch, lanes, tags)
        if sources is None:
            return position
        sources[EXTENT] = first_extents
        return replace(position, sources=sources)

    @classmethod
    def merge(cls, positions: Sequence[Position], *, rank: int, world_size: int) -> Position:
        """Create the position of a rank of a new world size from those of all former ranks.

        Args:
            positions: Those of all former ranks at one step; by record, one of them is enough.
            rank: The new rank.
            world_size: The new number of ranks, which divides the lanes.

        Raises:
            MalformedPosition: The positions are not those of all ranks at one step.
            ConfigError: The world size does not divide the lanes.
        """
        one = positions[0]
        if one.since is not None:
            _check_equal(positions, world_size)
            return replace(one, rank=rank, world_size=world_size)
        _check_complete(positions)
        count = one.fingerprint.lanes
        if count % world_size:
            raise ConfigError(
                f"world_size {world_size} does not divide {count} lanes; give a divisor of {count}"
            )

        def own(columns: Callable[[Position], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            """Return the new rank's columns of an array whose last axis is the lanes."""
            first = columns(one)
            whole = np.empty((*first.shape[:-1], count), first.dtype)
            for position in positions:
                whole[..., position.rank :: position.world_size] = columns(position)
            return whole[..., rank::world_size].copy()

        shape = WINDOW, one.components, -1
        tags = own(lambda position: position.tags.reshape(shape[1:]))
        sources = _NO_SOURCES
        if one.sources.size:
            sources = own(lambda position: position.sources.reshape(shape)).reshape(WINDOW, -1)
        return cls(
            one.fingerprint,
            one.step,
            rank,
            world_size,
            one.run_epoch,
            min(position.epoch for position in positions),
            own(lambda position: position.lanes),
            tags.reshape(-1),
            sources=sources,
        )


def check_version(data: Any) -> None:
    """Check that the data is a state, of a version that is known.

    Raises:
        OtherVersion: A later version of streamrec saved it.
        MalformedPosition: The data is not a state of streamrec.
    """
    if not isinstance(data, dict):
        raise MalformedPosition(
            f"the state is a {type(data).__name__}, not a mapping; give what state_dict() returned"
        )
    version = _number(data, "version")
    if version > VERSION:
        raise OtherVersion(
            f"the state has version {version}, this streamrec reads up to {VERSION}; upgrade it"
        )
    if version < VERSION:
        raise MalformedPosition(
            f"the state has version {version}, which no release of streamrec saved; begin without "
            "the state"
        )


def object_tag(version: str | None) -> int:
    """Return a short tag (20 bits, not 0) of an ETag or generation; 0 for ``None``."""
    return 0 if version is None else int(digest(version)[:8], 16) % MOST_TAG + 1


def _damaged(fault: str) -> MalformedPosition:
    return MalformedPosition(f"{fault}; give the state as it was saved")


def _number(data: Mapping[str, Any], name: str, most: int = LARGEST) -> int:
    value = data.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise _damaged(f"the state's {name!r} is not a number from 0 to {most}")
    return value


def _owned_lanes(lanes: int, rank: int, world_size: int) -> int:
    if not 0 < lanes <= MOST_LANES:
        raise _damaged(f"the state names {lanes} lanes, not 1 to {MOST_LANES}")
    if not 0 <= rank < world_size or lanes % world_size:
        raise _damaged(
            f"the state is of rank {rank} of {world_size} over {lanes} lanes, which no stream has"
        )
    return lanes // world_size


def _standing(
    rows: npt.NDArray[np.int64], owned: int, fingerprint: Fingerprint
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split rows into lanes, sources and tags."""
    count, rest = divmod(len(rows) - len(COORDINATES), WINDOW + 1)
    if not fingerprint.has_sources:
        count, rest = 0, len(rows) - len(COORDINATES) - 1
    if rest or rows.shape[1:] != (owned,) or (fingerprint.has_sources and count < 1):
        raise _damaged("the state has other rows than its order has")
    end = len(COORDINATES) + WINDOW * count
    lanes, sources, tags = rows[: len(COORDINATES)], rows[len(COORDINATES) : end], rows[end:]
    if rows.view(np.uint64).max() > LARGEST or tags.max() > MOST_TAG:
        raise _damaged("the state's 'packed' holds something else than its numbers")
    if not fingerprint.shuffle_window and lanes[ROW].any():
        raise _damaged("the state names rows of windows, and nothing is shuffled")
    split = sources.reshape(WINDOW, -1) if count else _NO_SOURCES
    return lanes, split, tags.reshape(-1)


def _rows(data: Mapping[str, Any], owned: int, components: int) -> npt.NDArray[np.int64]:
    """Return the rows of the lanes, of the sources, and of the tags."""
    count = len(COORDINATES) + WINDOW * components + max(1, components)
    return unpack(data.get("packed"), count, owned)


def _components(data: Mapping[str, Any], owned: int) -> int:
    count = _number(data, "components")
    most = min(MOST_COMPONENTS, MOST_PLACES // owned)
    if not 0 < count <= most:
        raise _damaged(f"the state names {count} components, not 1 to {most}")
    return count


def _since(data: Mapping[str, Any]) -> tuple[int, int]:
    since = data.get("since")
    limits = _number(data, "run_epoch"), _number(data, "step")
    if not isinstance(since, list) or len(since) != 2:
        raise _damaged("the state's 'since' is not a list of an epoch and a step")
    for value, limit in zip(since, limits, strict=True):
        if type(value) is not int or not 0 <= value <= limit:
            raise _damaged("the state's 'since' is behind its 'run_epoch' or its 'step'")
    return since[0], since[1]


def _check_equal(positions: Sequence[Position], world_size: int) -> None:
    """Check that states by record are the same: each of them determines all lanes."""
    one = positions[0]
    for position in positions[1:]:
        one.fingerprint.check(position.fingerprint)
    if len({(position.step, position.since) for position in positions}) > 1:
        raise MalformedPosition("the states are of different steps; give those of one step")
    if one.fingerprint.lanes % world_size:
        lanes = one.fingerprint.lanes
        raise ConfigError(
            f"world_size {world_size} does not divide {lanes} lanes; give a divisor of {lanes}"
        )
    if one.fingerprint.global_batch is None and world_size != one.world_size:
        raise MalformedPosition(
            f"the state counts the single records of one rank of {one.world_size}; set batch_size, "
            "or go on with as many ranks"
        )


def _check_complete(positions: Sequence[Position]) -> None:
    one = positions[0]
    for position in positions[1:]:
        one.fingerprint.check(position.fingerprint)
    if sorted(position.rank for position in positions) != list(range(one.world_size)):
        ranks = ", ".join(str(position.rank) for position in positions)
        raise MalformedPosition(
            f"the states are of the ranks {ranks} of {one.world_size}; give one of every rank"
        )
    if len({position.components for position in positions}) > 1:
        raise MalformedPosition(
            "the states have different numbers of components; give those of one stream"
        )
    if any(position.skip for position in positions):
        raise MalformedPosition(
            "these states stand in the middle of single records that travelled together, so they "
            "cannot be merged; set batch_size, or go on with as many ranks as before"
        )
    if len({(position.world_size, position.step) for position in positions}) > 1:
        raise MalformedPosition("the states are of different steps; give those of one step")
