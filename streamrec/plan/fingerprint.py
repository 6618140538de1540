"""Which dataset and order a stream has: what must be equal for its records to be."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import MalformedPosition, OtherDataset, OtherOrder
from streamrec.plan.order import open_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AS_IT_COMES", "Fingerprint", "by_shard", "digest", "names_digest", "relative_names"]

AS_KEPT = "record, as kept:"
COUNTED = "record:"
WINDOWED = "record, even windows:"
SHARD = "shard"
AT_ONCE = " at once"
AS_IT_COMES = ", as it comes"
_OPTIONAL = {"stages": "", "mix": ""}


@dataclass(frozen=True)
class Fingerprint:
    """Everything that determines which records come in which order.

    Two streams with equal fingerprints deliver the same records in the same order, wherever the
    shards are stored and however they are fetched.
    """

    names: str
    """A digest of the shards' names, relative to the directory that they share."""
    shards: int
    order: str
    """``"shard"``, and ``", 3 at once"`` where a lane has so many open; or ``"record"``, a colon
    and the digest of the index; in between ``", as kept"`` where nobody knows how many records, or
    packs of them, the lanes give, and else, where there are windows, ``", even windows"``."""
    lanes: int
    shuffle: bool
    seed: int
    """0 where nothing is drawn: it has no effect then."""
    shuffle_window: int
    """Bytes; 0 where there are no windows."""
    global_batch: int | None
    """Records of all ranks a step; ``None`` for single records."""
    stages: str = ""
    """What lanes do to their records beside the order: functions, packing and buckets."""
    mix: str = ""
    """The components of a mix, their weights, and what becomes of one that ends."""

    @property
    def by_record(self) -> bool:
        """Whether the order is by record, and counts are known: a step says where lanes stand."""
        return self.order.startswith((COUNTED, WINDOWED))

    @property
    def has_sources(self) -> bool:
        """Whether a lane draws from several shards, so that a position says where in each."""
        return bool(self.mix) or AT_ONCE in self.order

    @property
    def digest(self) -> str:
        """16 hexadecimal digits for the whole."""
        return digest(json.dumps(self.to_dict(), sort_keys=True))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON-able data; ``stages`` and ``mix`` are left out where there are none."""
        data = asdict(self)
        return {name: data[name] for name in data if data[name] or name not in _OPTIONAL}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read what :meth:`to_dict` gave.

        Raises:
            MalformedPosition: It is something else.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        data = {**_OPTIONAL, **data} if isinstance(data, dict) else data
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise MalformedPosition(f"a fingerprint has the fields {', '.join(kinds)}")
        for name, kind in kinds.items():
            if type(data[name]).__name__.replace("NoneType", "None") not in kind.split(" | "):
                raise MalformedPosition(f"the fingerprint's {name!r} is not of type {kind}")
            if isinstance(data[name], int) and not 0 <= data[name] < 1 << 63:
                raise MalformedPosition(f"the fingerprint's {name!r} is no number from 0 up")
        return cls(**data)

    def check(self, saved: Fingerprint, what: str = "the state") -> None:
        """Refuse a position or a peer of another dataset or order.

        Args:
            saved: The fingerprint on the other side.
            what: What that is of, for the error.

        Raises:
            OtherDataset: The shards differ.
            OtherOrder: A setting that determines the order differs.
        """
        mine, theirs = asdict(self), asdict(saved)
        if (self.names, self.shards) != (saved.names, saved.shards):
            raise OtherDataset(
                f"{what} belongs to {saved.shards} shards other than the {self.shards} of this "
                "stream (their names differ); open the dataset that it was saved from"
            )
        differing = [
            f"{name} was {theirs[name]!r} and is {mine[name]!r}"
            for name in mine
            if mine[name] != theirs[name]
        ]
        if differing:
            remedy = f"{self._remedy(saved)}, or begin without {what}"
            raise OtherOrder(f"{what} belongs to another order: {'; '.join(differing)}; {remedy}")

    def _remedy(self, saved: Fingerprint) -> str:
        """What serves instead, where the saved order differs."""
        had_windows = saved.shuffle_window and saved.order.startswith(COUNTED)
        if had_windows and self.order.startswith(WINDOWED):
            return (
                "it is of a time when windows by record had other sizes and did not draw from "
                "their chunks evenly, which no setting restores; go on with the streamrec of then"
            )
        if saved.order != self.order and saved.shuffle and not saved.mix and not saved.by_record:
            return saved._remedy_of_open_shards()
        return "restore these settings"

    def _remedy_of_open_shards(self) -> str:
        open_shards = open_at_once(self.shards, max(1, self.lanes), self.shuffle_window)
        if self.order.removesuffix(AS_IT_COMES) == by_shard(open_shards):
            return (
                f"restore these settings (lanes={self.lanes} have {open_shards} shards open each)"
            )
        return (
            "it is of a time when each lane of a shuffle had another number of shards open, which "
            "no setting restores; go on with the streamrec of then"
        )


def by_shard(open_shards: int) -> str:
    """The order by shard, by its name: of lanes that have so many shards open at once."""
    return SHARD if open_shards == 1 else f"{SHARD}, {open_shards}{AT_ONCE}"


def relative_names(urls: Sequence[str]) -> list[str]:
    """The shards' names below the directory that they share: the same for a mirror elsewhere."""
    parts = [url.split("/") for url in urls]
    first, last = min(parts), max(parts)
    depth = min(len(part) for part in parts) - 1
    shared = next((i for i in range(depth) if first[i] != last[i]), depth)
    return ["/".join(part[shared:]) for part in parts]


def names_digest(urls: Sequence[str]) -> str:
    """16 hexadecimal digits for the shards' relative names, in their order."""
    return digest("\n".join(relative_names(urls)))


def digest(text: str) -> str:
    """16 hexadecimal digits for a text."""
    return blake2b(text.encode(), digest_size=8).hexdigest()
