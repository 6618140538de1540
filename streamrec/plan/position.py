"""Where a stream stands, and which dataset and order it stands in.

A position rides on every batch. It is a few numbers a lane, never a record's content, so that it
can be saved as plain JSON. It comes back from outside: :meth:`Position.from_dict` believes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamrec.errors import ConfigError, MalformedPosition, OtherVersion
from streamrec.plan import former
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
"""No shard is longer and no stream comes farther; sums and products of a few stay below 2^63."""
LAST_EPOCH = 1 << 31
"""Far beyond any run, and small enough for the numbers of extents to stay below 2^63."""
MOST_SKIPPED = 1 << 16
"""Single records that may have travelled together: far more than ever do."""
MOST_LANES = 1 << 16
MOST_COMPONENTS = 1 << 8
MOST_PLACES = 1 << 18
"""Components times lanes: no budget has memory for the beginnings of so many shards."""
MOST_TAG = (1 << 20) - 1
"""A change that comes with one new version in a million is not noticed by its tag."""


_NO_LANES = np.zeros((len(COORDINATES), 0), np.int64)
_NO_SOURCES = np.zeros((WINDOW, 0), np.int64)
_NO_TAGS = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Position:
    """Where one rank's lanes stand. Column ``j`` of its arrays is lane ``rank + j*world_size``."""

    fingerprint: Fingerprint
    step: int
    """Batches (or single records) that this rank has delivered since the stream's very start."""
    rank: int
    world_size: int
    run_epoch: int
    """The epoch at which the present run began."""
    epoch: int
    """The lowest epoch of the lanes."""
    lanes: npt.NDArray[np.int64]
    """int64 ``[7, own lanes]``, rows as in ``COORDINATES``: the extent, byte offset and record
    number at which the lane's window begins (without shuffle: its next record), the window's number
    in its epoch, the rows of it that are done, all records the lane has ever delivered, and how
    much of what is packed from there on is delivered too; without packs, how many of the window's
    rows that are done were damaged, and left out. Of a mix, the first three are its epoch, 0, and
    the number in that epoch of the mix's record; of a lane with several shards open, its epoch, the
    bytes taken in an open shard's turn, and that turn's number in the epoch."""
    tags: npt.NDArray[np.int64]
    """int64: a short tag of the version of the object that each lane is in the middle of, 0 where
    it is in none or knows none; where there are sources, one for each column of them."""
    skip: int = 0
    """Records behind this position that have been delivered too (a stream of single records)."""
    since: tuple[int, int] | None = None
    """By record: the epoch at whose beginning all lanes stood, and the step at which they did. That
    and the step say it all, for every rank: ``lanes`` and ``tags`` are empty. ``None`` by shard,
    and where a filter or packs make counts unknown."""
    sources: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_SOURCES)
    """int64 ``[3, components * own lanes]``: the extent, byte offset and record number of the next
    record in each lane of each component of a mix, or of each open shard: one after the other. Else
    without columns."""

    @property
    def points(self) -> npt.NDArray[np.int64]:
        """int64 ``[3, ...]``: what is read from which extent, byte and record on."""
        return self.sources if self.sources.size else self.lanes[:WINDOW]

    @property
    def components(self) -> int:
        """How many a mix has, or open shards a lane; 1 where there are none."""
        return max(1, int(self.sources.shape[1]) // max(1, int(self.lanes.shape[1])))

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64 ``[rows, own lanes]``: of ``lanes``, ``sources``, then ``tags``; none by record.

        They and :attr:`numbers` are all that differs between a rank's positions in one stream.
        """
        owned = self.lanes.shape[1]
        if not owned:
            return _NO_LANES[:0]
        split = self.sources.reshape(-1, owned), self.tags.reshape(-1, owned)
        return np.concatenate([self.lanes, *split])

    @property
    def numbers(self) -> dict[str, Any]:
        """Those of ``NUMBERS`` and, by record, ``since``, by name."""
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
        """The same rank's in the same run, at a step at which its lanes stand there."""
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
        """As plain JSON-able data, a few KB at most."""
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
        """Read what :meth:`to_dict` gave; nothing about it is taken on trust.

        Raises:
            OtherVersion: A later version of streamrec saved it.
            MalformedPosition: It is no state of streamrec.
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
        """Put together what :attr:`numbers` and :attr:`rows` gave; neither is taken on trust.

        Args:
            fingerprint: Of the stream.
            rank: Whose position it is.
            world_size: Of how many.
            numbers: There may be others beside them.
            rows: The position keeps them; by record they are ignored.

        Raises:
            MalformedPosition: They are something else.
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
        """The beginning of an epoch.

        Args:
            fingerprint: Of the stream.
            first_extents: The number of each own lane's first extent in the epoch; of a mix or of
                open shards, those of one after the other.
            rank: Whose position it is.
            world_size: Of how many.
            epoch: Which one begins.
            step: How many steps came before.
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
        place = cls(fingerprint, step, rank, world_size, epoch, epoch, lanes, tags)
        if sources is None:
            return place
        sources[EXTENT] = first_extents
        return replace(place, sources=sources)

    @classmethod
    def merge(cls, positions: Sequence[Position], *, rank: int, world_size: int) -> Position:
        """The position of a rank of another world size, from those of all former ranks.

        Args:
            positions: Of every rank, at the same step; by record, one of them serves all.
            rank: The new one.
            world_size: The new one; it divides the lanes.

        Raises:
            MalformedPosition: They are not those of all ranks of one step.
            ConfigError: The world size does not divide the lanes.
        """
        one = positions[0]
        if one.since is not None:
            _check_equal(positions, world_size)
            return replace(one, rank=rank, world_size=world_size)
        _check_complete(positions)
        count = one.fingerprint.lanes
        if count % world_size:
            raise ConfigError(f"world_size {world_size} does not divide {count} lanes")

        def own(columns: Callable[[Position], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            """The new rank's columns, of all ranks' with the lanes as the last axis."""
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
    """Refuse what is no state, or one of a version that is not known.

    Raises:
        OtherVersion: A later version of streamrec saved it.
        MalformedPosition: It is no state of streamrec.
    """
    if not isinstance(data, dict):
        raise MalformedPosition("a state is a mapping, as state_dict() gives it")
    version = _number(data, "version")
    if version > VERSION:
        raise OtherVersion(
            f"the state has version {version}, this streamrec reads up to {VERSION}; upgrade it"
        )
    if version == 0:
        raise MalformedPosition(f"the state has version {version}, which there never was")


def object_tag(version: str | None) -> int:
    """A short tag (20 bits, not 0) for an ETag or generation, to notice a change by; 0 for none."""
    return 0 if version is None else int(digest(version)[:8], 16) % MOST_TAG + 1


def _number(data: Mapping[str, Any], name: str, most: int = LARGEST) -> int:
    value = data.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedPosition(f"the state's {name!r} is not a number from 0 to {most}")
    return value


def _owned_lanes(lanes: int, rank: int, world_size: int) -> int:
    if not 0 < lanes <= MOST_LANES:
        raise MalformedPosition(f"the state names {lanes} lanes; there are 1 to {MOST_LANES}")
    if not 0 <= rank < world_size or lanes % world_size:
        raise MalformedPosition(f"the state is of rank {rank} of {world_size} over {lanes} lanes")
    return lanes // world_size


def _standing(
    rows: npt.NDArray[np.int64], owned: int, fingerprint: Fingerprint
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The lanes, sources and tags."""
    count, rest = divmod(len(rows) - len(COORDINATES), WINDOW + 1)
    if not fingerprint.has_sources:
        count, rest = 0, len(rows) - len(COORDINATES) - 1
    if rest or rows.shape[1:] != (owned,) or (fingerprint.has_sources and count < 1):
        raise MalformedPosition("the state has other rows than its order has")
    end = len(COORDINATES) + WINDOW * count
    lanes, sources, tags = rows[: len(COORDINATES)], rows[len(COORDINATES) : end], rows[end:]
    if rows.view(np.uint64).max() > LARGEST or tags.max() > MOST_TAG:
        raise MalformedPosition("the state's 'packed' holds something else than its numbers")
    if not fingerprint.shuffle_window and lanes[ROW].any():
        raise MalformedPosition("the state names rows of windows, and nothing is shuffled")
    places = sources.reshape(WINDOW, -1) if count else _NO_SOURCES
    return lanes, places, tags.reshape(-1)


def _rows(data: Mapping[str, Any], owned: int, components: int) -> npt.NDArray[np.int64]:
    """Those of the lanes, of the sources, and of the tags."""
    if data["version"] == VERSION:
        count = len(COORDINATES) + WINDOW * components + max(1, components)
        return unpack(data.get("packed"), count, owned)
    if components:
        rows = former.texts(data, COORDINATES, owned, components)
    else:
        rows = former.lists(data, COORDINATES, owned)
    tags = rows[len(COORDINATES) + WINDOW * components :]
    tags[:] = np.where(tags == 0, 0, (tags - 1) % MOST_TAG + 1)
    return rows


def _components(data: Mapping[str, Any], owned: int) -> int:
    count = _number(data, "components")
    if not 0 < count <= min(MOST_COMPONENTS, MOST_PLACES // owned):
        raise MalformedPosition(f"the state names {count} components")
    return count


def _since(data: Mapping[str, Any]) -> tuple[int, int]:
    since = data.get("since")
    limits = _number(data, "run_epoch"), _number(data, "step")
    if not isinstance(since, list) or len(since) != 2:
        raise MalformedPosition("the state's 'since' is not a list of an epoch and a step")
    for value, limit in zip(since, limits, strict=True):
        if type(value) is not int or not 0 <= value <= limit:
            raise MalformedPosition("the state's 'since' is behind its 'run_epoch' or its 'step'")
    return since[0], since[1]


def _check_equal(positions: Sequence[Position], world_size: int) -> None:
    """By record every state says all there is to say; several must say the same."""
    one = positions[0]
    for position in positions[1:]:
        one.fingerprint.check(position.fingerprint)
    if len({(position.step, position.since) for position in positions}) > 1:
        raise MalformedPosition("the states are of different steps; give those of one step")
    if one.fingerprint.lanes % world_size:
        raise ConfigError(f"world_size {world_size} does not divide {one.fingerprint.lanes} lanes")
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
        raise MalformedPosition("the states are of different numbers of components")
    if any(position.skip for position in positions):
        raise MalformedPosition(
            "these states stand in the middle of single records that travelled together, so they "
            "cannot be merged; set batch_size, or go on with as many ranks as before"
        )
    if len({(position.world_size, position.step) for position in positions}) > 1:
        raise MalformedPosition("the states are of different steps; give those of one step")
