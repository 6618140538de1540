"""The fingerprint of a dataset and its order: equal fingerprints mean equal records."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import MalformedPosition, OtherDataset, OtherOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """A digest of the shards' names, relative to their common directory."""
    shards: int
    order: str
    """``"shard"``, followed by ``", 3 at once"`` where a lane has 3 shards open; or ``"record"``, a
    colon and the digest of the index. Before the colon stands ``", as kept"`` where a filter or
    packs make the lanes' counts unknown, otherwise ``", even windows"`` where there are windows."""
    lanes: int
    shuffle: bool
    seed: int
    """0 where nothing is drawn at random and the seed has no effect."""
    shuffle_window: int
    """Bytes; 0 where there are no windows."""
    global_batch: int | None
    """Records of all ranks a step; ``None`` for single records."""
    stages: str = ""
    """The stages that change a lane's records or their order: functions, packing and buckets."""
    mix: str = ""
    """The components of a mix, their weights, and the behaviour at the end of one."""

    @property
    def by_record(self) -> bool:
        """``True`` where a step determines the lanes' positions: by record, with known counts."""
        return self.order.startswith((COUNTED, WINDOWED))

    @property
    def has_sources(self) -> bool:
        """``True`` where a lane draws from several shards, each of which a position names."""
        return bool(self.mix) or AT_ONCE in self.order

    @property
    def digest(self) -> str:
        """The digest of all fields, 16 hexadecimal digits."""
        return digest(json.dumps(self.to_dict(), sort_keys=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``stages`` and ``mix`` are left out where they are empty."""
        data = asdict(self)
        return {name: data[name] for name in data if data[name] or name not in _OPTIONAL}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read the data of :meth:`to_dict`.

        Raises:
            MalformedPosition: The data is something else.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        data = {**_OPTIONAL, **data} if isinstance(data, dict) else data
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise MalformedPosition(
                f"the fingerprint does not have the fields {', '.join(kinds)}; give the state as "
                "it was saved"
            )
        for name, kind in kinds.items():
            value = data[name]
            is_kind = type(value).__name__.replace("NoneType", "None") in kind.split(" | ")
            if not is_kind or (isinstance(value, int) and not 0 <= value < 1 << 63):
                raise MalformedPosition(
                    f"the fingerprint's {name!r} is not of type {kind}, from 0 to 2^63 - 1 if it "
                    "is a number; give the state as it was saved"
                )
        return cls(**data)

    def check(self, saved: Fingerprint, what: str = "the state") -> None:
        """Check that a position or a peer has the same dataset and order.

        Args:
            saved: The fingerprint on the other side.
            what: The name of the other side, for the error.

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
            raise OtherOrder(
                f"{what} belongs to another order: {'; '.join(differing)}; restore these settings, "
                f"or begin without {what}"
            )


def by_shard(open_shards: int) -> str:
    """Return the name of the order by shard, for lanes with ``open_shards`` shards open at once."""
    return SHARD if open_shards == 1 else f"{SHARD}, {open_shards}{AT_ONCE}"


def relative_names(urls: Sequence[str]) -> list[str]:
    """Return the shards' names below their common directory: the same for any copy of them."""
    parts = [url.split("/") for url in urls]
    first, last = min(parts), max(parts)
    depth = min(len(part) for part in parts) - 1
    shared = next((i for i in range(depth) if first[i] != last[i]), depth)
    return ["/".join(part[shared:]) for part in parts]


def names_digest(urls: Sequence[str]) -> str:
    """Return the digest of the shards' relative names, in their order."""
    return digest("\n".join(relative_names(urls)))


def digest(text: str) -> str:
    """Return the digest of a text, 16 hexadecimal digits."""
    # The names of files need not be UTF-8; Python has their other bytes as surrogates.
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
