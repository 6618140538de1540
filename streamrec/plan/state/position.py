"""The position of a rank in a stream, with the fingerprint of the stream.

Every batch carries one. It is a few numbers a lane, never a record's content, so that it can be
saved as plain JSON. A saved position is untrusted input: :meth:`Position.from_dict` checks it all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamrec.errors import ConfigError, MalformedPosition, OtherVersion
from streamrec.masking import type_of
from streamrec.plan.order.coordinates import (
    LANE,
    OWN,
    POINT,
    POINTS,
    flat,
    pack,
    structured,
    unpack,
)
from streamrec.plan.state.fingerprint import ENDS, Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.plan.order.coordinates import Structured

    Numbers = npt.NDArray[np.int64]


VERSION = 3
NUMBERS = ("step", "run_epoch", "epoch", "skip")
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
MOST_ENDS = 200
"""The most characters of the ends."""
MOST_CRC = (1 << 32) - 1
"""The largest CRC."""

_NO_LANES = np.zeros(0, LANE)
_NO_SOURCES = np.zeros((0, 0), POINT)
_NO_ROWS = np.zeros((0, 0), np.int64)
_NO_SIZES = np.zeros((0, 1), np.int64)


@dataclass(frozen=True, eq=False)
class Position:
    """The coordinates of one rank's lanes; element ``j`` is lane ``rank + j*world_size``."""

    fingerprint: Fingerprint
    step: int
    """Batches (or single records) that this rank has delivered since the stream's very start."""
    rank: int
    world_size: int
    run_epoch: int
    """The epoch at which the present run began."""
    epoch: int
    """The lowest epoch of the lanes' next records."""
    lanes: Structured
    """``LANE [own lanes]``: see :class:`Coordinates`."""
    sizes: Numbers
    """int64 ``[own lanes, 1]``, or of the shape of ``sources``: the size in bytes of the shard in
    which the position lies; 0 between shards. With the CRCs of the points it tells whether another
    object is a copy of that shard."""
    skip: int = 0
    """Records after this position that are delivered too (in a stream of single records)."""
    since: tuple[int, int] | None = None
    """By record: an epoch, and the step at which all lanes were at its beginning. With ``step``
    they determine every rank's position, so ``lanes`` and ``sizes`` are empty. ``None`` by shard,
    and where a filter or packs make the lanes' counts unknown."""
    sources: Structured = field(default_factory=lambda: _NO_SOURCES)
    """``POINT [own lanes, sources]``: the point of each lane in each component of a mix, or in each
    open shard; empty if there are neither."""
    origin: int = 0
    """The epoch at whose beginning all lanes began, from which their turns are counted. By record,
    ``since`` has it."""
    ends: str = ""
    """The settings that decide where the run ends, as JSON: those that are not the defaults. A
    stream that goes on may have others; who asks for later steps has them from here."""

    @property
    def mix_changes(self) -> str:
        """The changes of a mix's weights while it runs."""
        return self.fingerprint.mix_changes

    def with_changes(self, mix_changes: str) -> Position:
        """Return the same place in a stream with other changes of weights."""
        return replace(self, fingerprint=replace(self.fingerprint, mix_changes=mix_changes))

    @property
    def points(self) -> Structured:
        """The points from which shards are read; a lane's other fields may follow."""
        return self.sources if self.sources.size else self.lanes

    @property
    def components(self) -> int:
        """The number of a mix's components, or of a lane's open shards; 1 where there are none."""
        return max(1, int(self.sources.shape[1]))

    @property
    def rows(self) -> Numbers:
        """int64 ``[rows, own lanes]``: ``lanes``, ``sources``, then ``sizes``; no rows by record.

        Positions of one rank in one stream differ only in these and in :attr:`numbers`.
        """
        owned = len(self.lanes)
        if not owned:
            return _NO_ROWS
        rows = flat(self.lanes), flat(self.sources).reshape(-1, owned), self.sizes.T
        return np.ascontiguousarray(np.concatenate(rows))

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of ``NUMBERS``, ``origin`` or by record ``since``, and ``ends`` if any."""
        began = {"origin": self.origin} if self.since is None else {"since": list(self.since)}
        ends = {"ends": self.ends} if self.ends else {}
        return {**{name: getattr(self, name) for name in NUMBERS}, **began, **ends}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        # Enough to tell positions of a stream apart; the arrays would have to be packed for it.
        return hash((self.fingerprint, self.step, self.rank, self.world_size, self.skip))

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
            OtherVersion: Another version of streamrec saved it.
            MalformedPosition: The data is not a state of streamrec.
        """
        check_version(data)
        fingerprint = Fingerprint.from_dict(data.get("fingerprint"))
        rank, world_size = _number(data, "rank"), _number(data, "world_size")
        owned = _owned_lanes(fingerprint.lanes, rank, world_size)
        if fingerprint.by_record:
            return cls.of(fingerprint, rank, world_size, data, _NO_ROWS)
        components = _components(data, owned) if fingerprint.has_sources else 0
        count = OWN + POINTS * components + max(1, components)
        rows = unpack(data.get("packed"), count, owned)
        return cls.of(fingerprint, rank, world_size, data, rows)

    @classmethod
    def of(
        cls,
        fingerprint: Fingerprint,
        rank: int,
        world_size: int,
        numbers: Mapping[str, Any],
        rows: Numbers,
    ) -> Self:
        """Create a position from :attr:`numbers` and :attr:`rows`, both checked as untrusted input.

        Args:
            fingerprint: The fingerprint of the stream.
            rank: The rank.
            world_size: The number of ranks.
            numbers: The numbers; other keys are ignored.
            rows: The rows, which are copied; by record they are ignored.

        Raises:
            MalformedPosition: The numbers or rows are something else.
        """
        by_record = fingerprint.by_record
        lanes, sources, sizes = _NO_LANES, _NO_SOURCES, _NO_SIZES
        if not by_record:
            owned = _owned_lanes(fingerprint.lanes, rank, world_size)
            lanes, sources, sizes = _arrays(rows, owned, fingerprint)
        return cls(
            fingerprint=fingerprint,
            step=_number(numbers, "step"),
            rank=rank,
            world_size=world_size,
            run_epoch=_number(numbers, "run_epoch", LAST_EPOCH),
            epoch=_number(numbers, "epoch", LAST_EPOCH),
            lanes=lanes,
            sizes=sizes,
            skip=_number(numbers, "skip", MOST_SKIPPED if fingerprint.global_batch is None else 0),
            since=_since(numbers) if by_record else None,
            sources=sources,
            origin=0 if by_record else _number(numbers, "origin", LAST_EPOCH),
            ends=_ends(numbers),
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
                component of a mix, or open shard by open shard.
            rank: The rank.
            world_size: The number of ranks.
            epoch: The epoch.
            step: The number of steps before it.
        """
        make = partial(
            cls,
            fingerprint=fingerprint,
            step=step,
            rank=rank,
            world_size=world_size,
            run_epoch=epoch,
            epoch=epoch,
        )
        if fingerprint.by_record:
            return make(lanes=_NO_LANES, sizes=_NO_SIZES, since=(epoch, step))
        owned = fingerprint.lanes // world_size
        points = np.reshape(np.array(first_extents, np.int64), (-1, owned)).T
        lanes = np.zeros(owned, LANE)
        sources = np.zeros(points.shape if fingerprint.has_sources else (owned, 0), POINT)
        if fingerprint.has_sources:
            lanes["extent"], sources["extent"] = epoch, points
        else:
            lanes["extent"] = points[:, 0]
        return make(lanes=lanes, sizes=np.zeros_like(points), sources=sources, origin=epoch)

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
        _check_mergeable(positions, world_size)
        # By record the step alone says where each lane is, whoever owns it.
        if one.since is not None:
            return replace(one, rank=rank, world_size=world_size)

        def own(name: str) -> Any:
            """Return the new rank's part of an array, whose first axis is the lanes."""
            first = getattr(one, name)
            whole = np.empty((one.fingerprint.lanes, *first.shape[1:]), first.dtype)
            for position in positions:
                # Rank r of w ranks has the lanes r, r + w, r + 2w, ...
                whole[position.rank :: position.world_size] = getattr(position, name)
            return whole[rank::world_size].copy()

        return replace(
            one,
            rank=rank,
            world_size=world_size,
            epoch=min(position.epoch for position in positions),
            lanes=own("lanes"),
            sizes=own("sizes"),
            sources=own("sources") if one.sources.size else one.sources,
        )


def check_version(data: Any) -> None:
    """Check that the data is a state, of the version that is known.

    Raises:
        OtherVersion: Another version of streamrec saved it.
        MalformedPosition: The data is not a state of streamrec.
    """
    if not isinstance(data, Mapping):
        raise MalformedPosition(
            f"the state is {type_of(data)}, not a mapping; give what state_dict() returned "
            "(json.loads of its JSON)"
        )
    if "version" not in data:
        raise MalformedPosition(
            "this is not a state of streamrec: it has no 'version'; give what state_dict() of a "
            "stream returned, or its JSON"
        )
    version = _number(data, "version")
    if version > VERSION:
        raise OtherVersion(
            f"the state has version {version}, but this streamrec reads version {VERSION}; "
            "upgrade streamrec"
        )
    if version < VERSION:
        raise OtherVersion(
            f"the state has version {version}, and the order of records has changed since; go on "
            "with the streamrec that saved it, or begin without the state"
        )


def _fault(fault: str) -> MalformedPosition:
    return MalformedPosition(f"{fault}; give the state as it was saved")


def _number(data: Mapping[str, Any], name: str, most: int = LARGEST) -> int:
    value = data.get(name)
    # Not isinstance: True is an int, and a state with it was not saved here.
    if type(value) is not int or not 0 <= value <= most:
        raise _fault(f"the state's {name!r} is not a number from 0 to {most}")
    return value


def _owned_lanes(lanes: int, rank: int, world_size: int) -> int:
    if not 0 < lanes <= MOST_LANES:
        raise _fault(f"the state names {lanes} lanes, not 1 to {MOST_LANES}")
    if not 0 <= rank < world_size or lanes % world_size:
        raise _fault(
            f"the state is of rank {rank} of {world_size} over {lanes} lanes, which no stream has"
        )
    return lanes // world_size


def _arrays(
    rows: Numbers, owned: int, fingerprint: Fingerprint
) -> tuple[Structured, Structured, Numbers]:
    """Split rows into lanes, sources and sizes."""
    # Each source has the coordinates of a point, and a size.
    count, rest = divmod(len(rows) - OWN, POINTS + 1)
    if not fingerprint.has_sources:
        count, rest = 0, len(rows) - OWN - 1
    if rest or rows.shape[1:] != (owned,) or (fingerprint.has_sources and count < 1):
        raise _fault("the number of rows in the state does not fit its order")
    end = OWN + POINTS * count
    lanes, sizes = structured(rows[:OWN], LANE), rows[end:].T.copy()
    sources = structured(rows[OWN:end].reshape(POINTS, count, owned), POINT)
    crcs = np.concatenate([lanes["crc"], sources["crc"].ravel()])
    # Read as unsigned numbers, negative ones are too large as well.
    if rows.view(np.uint64).max() > LARGEST or crcs.max() > MOST_CRC:
        raise _fault("a number in the state's 'packed' is out of range")
    has_rows = fingerprint.shuffle_window or fingerprint.has_episodes
    if not has_rows and lanes["row"].any():
        raise _fault("the state has rows of shuffle windows, but its order has no shuffle")
    return lanes, sources, sizes


def _components(data: Mapping[str, Any], owned: int) -> int:
    count = _number(data, "components")
    most = min(MOST_COMPONENTS, MOST_PLACES // owned)
    if not 0 < count <= most:
        raise _fault(f"the state names {count} components, not 1 to {most}")
    return count


def _since(data: Mapping[str, Any]) -> tuple[int, int]:
    since = data.get("since")
    limits = _number(data, "run_epoch"), _number(data, "step")
    if not isinstance(since, list) or len(since) != 2:
        raise _fault("the state's 'since' is not a list of an epoch and a step")
    for value, limit in zip(since, limits, strict=True):
        if type(value) is not int or not 0 <= value <= limit:
            raise _fault("the state's 'since' is behind its 'run_epoch' or its 'step'")
    return since[0], since[1]


def _ends(data: Mapping[str, Any]) -> str:
    text = data.get("ends", "")
    found: Any = None
    if isinstance(text, str) and len(text) <= MOST_ENDS:
        with suppress(ValueError, RecursionError):
            found = json.loads(text or "{}")
    is_plain = isinstance(found, dict) and found.keys() <= {*ENDS}
    if not is_plain or not all(isinstance(value, int | str | None) for value in found.values()):
        raise _fault("the state's 'ends' are not settings of the ends of runs")
    return str(text)


def _check_mergeable(positions: Sequence[Position], world_size: int) -> None:
    """Check that positions are those of all ranks at one step; by record, that they are the same.

    By record, each of them determines all lanes.
    """
    one = positions[0]
    by_record, lanes = one.since is not None, one.fingerprint.lanes
    for position in positions[1:]:
        # First, since the other faults say nothing of states of different streams.
        one.fingerprint.check(position.fingerprint)
    ranks = [position.rank for position in positions]
    if not by_record and sorted(ranks) != list(range(one.world_size)):
        raise MalformedPosition(
            f"the states are of the ranks {', '.join(map(str, ranks))} of {one.world_size}; give "
            "one of every rank"
        )
    if len({position.components for position in positions}) > 1:
        raise MalformedPosition(
            "the states have different numbers of components; give those of one stream"
        )
    if not by_record and any(position.skip for position in positions):
        raise MalformedPosition(
            "these states stand in the middle of single records that travelled together, so they "
            "cannot be merged; set batch_size, or go on with as many ranks as before"
        )
    # By record, each state determines all lanes, whatever world size saved it.
    if len({(p.step, p.since, p.origin, by_record or p.world_size) for p in positions}) > 1:
        raise MalformedPosition("the states are of different steps; give those of one step")
    if lanes % world_size:
        raise ConfigError(
            f"world_size {world_size} does not divide {lanes} lanes; give a divisor of {lanes}"
        )
    if by_record and one.fingerprint.global_batch is None and world_size != one.world_size:
        raise MalformedPosition(
            f"the state counts the single records of one rank of {one.world_size}; set batch_size, "
            "or go on with as many ranks"
        )
