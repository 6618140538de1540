"""The fingerprint of a dataset and its order, and the check that all ranks have the same one."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError, MalformedPosition, OtherDataset, OtherOrder

if TYPE_CHECKING:
    from collections.abc import Sequence


AS_KEPT = "record, as kept:"
DRAWN = "record, as drawn:"
COUNTED = "record:"
WINDOWED = "record, even windows:"
SHARD = "shard"
AT_ONCE = " at once"
AS_IT_COMES = ", as it comes"
FEW_A_WINDOW = ", few shards a window"
BUCKETS = " length buckets"
_OPTIONAL = {"stages": "", "mix": "", "mix_changes": ""}


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
    packs make the lanes' counts unknown, ``", as drawn"`` in a mix without these, otherwise
    ``", even windows"`` where there are windows. ``", few shards a window"`` follows where a limit
    on the shards of a window may count."""
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
    mix_changes: str = ""
    """The changes of a mix's weights while it runs, as :mod:`.resume_point` writes them. They go
    with the state: a dataset's own fingerprint has none."""

    @property
    def by_record(self) -> bool:
        """``True`` where a step determines the lanes' positions: by record, with known counts."""
        return self.order.startswith((COUNTED, WINDOWED))

    @property
    def is_computable(self) -> bool:
        """``True`` where an index alone tells the records of each step."""
        is_mixed = self.order.startswith(DRAWN) and not self.has_episodes
        return (self.by_record or is_mixed) and not self.stages.endswith(BUCKETS)

    @property
    def has_packs(self) -> bool:
        """``True`` where a row is a pack of records, whose origin names only the first of them."""
        return "Pack(" in self.stages

    @property
    def has_episodes(self) -> bool:
        """``True`` where a row is a window of a record, of which a lane may have delivered some."""
        return "Window(" in self.stages

    @property
    def has_sources(self) -> bool:
        """``True`` where a lane draws from several shards, each of which a position names."""
        return bool(self.mix) or AT_ONCE in self.order

    @property
    def digest(self) -> str:
        """The digest of all fields, 16 hexadecimal digits."""
        return digest(json.dumps(self.to_dict(), sort_keys=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the last fields where these are empty."""
        data = asdict(self)
        return {name: data[name] for name in data if data[name] or name not in _OPTIONAL}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read the data of :meth:`to_dict`.

        Raises:
            MalformedPosition: The data is something else.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        # to_dict() leaves these out where they are empty.
        data = {**_OPTIONAL, **data} if isinstance(data, Mapping) else {}
        if data.keys() != kinds.keys():
            raise MalformedPosition(
                f"the fingerprint does not have the fields {', '.join(kinds)}; give the state as "
                "it was saved"
            )
        for name, kind in kinds.items():
            value = data[name]
            # By the name of the type itself, since True is an int.
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
                "stream (their names differ, or which of their records split selects); open the "
                "dataset that it was saved from"
            )
        if replace(self, mix_changes=saved.mix_changes) == saved != self:
            raise OtherOrder(
                f"{what} has other changes of the weights than this stream: "
                f"{saved.mix_changes or 'none'}, and not {self.mix_changes or 'none'}; call "
                "set_weights alike on all ranks"
            )
        differing = [
            f"{name} was {theirs[name]!r} and is {mine[name]!r}{settings_of(name)}"
            for name in mine
            if mine[name] != theirs[name]
        ]
        if differing:
            raise OtherOrder(
                f"{what} belongs to another order: {'; '.join(differing)}; restore these settings, "
                f"or begin without {what}"
            )


_MADE_OF = {
    "order": "index, shuffle and ordered",
    "global_batch": "batch_size x world_size",
    "stages": "filter, map, pack, window and length_buckets",
    "mix": "source, weights and exhausted",
}
"""The settings behind each field that is not a setting itself."""


def settings_of(name: str) -> str:
    """Return from which settings a field of the fingerprint follows, in brackets, for a message."""
    return f" (it is made of {_MADE_OF[name]})" if name in _MADE_OF else ""


def by_shard(open_shards: int) -> str:
    """Return the name of the order by shard, for lanes with ``open_shards`` shards open at once."""
    return SHARD if open_shards == 1 else f"{SHARD}, {open_shards}{AT_ONCE}"


def relative_names(urls: Sequence[str]) -> list[str]:
    """Return the shards' names below their common directory: the same for any copy of them."""
    # What the least and the greatest have in common, all between them have.
    shared = os.path.commonprefix([min(urls), max(urls)])  # noqa: RUF071 - of characters
    # The last part is a name, which is kept even if all are the same.
    directory = shared.rfind("/") + 1
    return [url[directory:] for url in urls]


def names_digest(urls: Sequence[str]) -> str:
    """Return the digest of the shards' relative names, in their order."""
    return digest("\n".join(relative_names(urls)))


def digest(text: str) -> str:
    """Return the digest of a text, 16 hexadecimal digits."""
    # The names of files need not be UTF-8; Python has their other bytes as surrogates.
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


ENDS = ("epochs", "steps_per_epoch", "remainder")
MOST_NAMED = 8
"""The most processes that a sentence names one by one."""


@dataclass(frozen=True)
class RankSummary:
    """A summary of the stream that one process is about to read."""

    fingerprint: Fingerprint
    rank: int
    world_size: int
    step: int
    """The step at which it begins."""
    ends: Mapping[str, Any]
    """The settings that decide where its runs end, and ``balance``."""

    def to_json(self) -> str:
        """Encode as text, for a collective operation that gathers it."""
        return json.dumps({**asdict(self), "ends": dict(self.ends)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode the text of :meth:`to_json` on another rank, which runs the same program."""
        data = json.loads(text)
        return cls(**{**data, "fingerprint": Fingerprint.from_dict(data["fingerprint"])})

    def facts(self) -> dict[str, Any]:
        """Return all that must be the same for every rank, by name."""
        order = asdict(self.fingerprint)
        names, changes = order.pop("names"), order.pop("mix_changes")
        plain = {"the names of the shards": names, "the changes of weights": changes, **order}
        plain |= {name: self.ends.get(name) for name in (*ENDS, "balance")}
        return {**plain, "world_size": self.world_size, "step": self.step}


def disagreements(summaries: Sequence[RankSummary]) -> list[str]:
    """Return a sentence for each fact on which the processes disagree.

    Args:
        summaries: Those of all processes, in order.
    """
    facts = [summary.facts() for summary in summaries]
    faults = [_values(name, [fact[name] for fact in facts]) for name in facts[0]]
    faults.append(_ranks(summaries))
    return [fault for fault in faults if fault]


def check_agreement(summaries: Sequence[RankSummary]) -> None:
    """Check that all ranks are about to read the same stream, each its own part of it.

    Ranks that read different orders would train on unnoticed; ranks that end at different steps
    would wait for each other for ever. Where the processes disagree, every one of them fails alike.

    Raises:
        ConfigError: They disagree; the message says which process differs in what.
    """
    faults = disagreements(summaries)
    if faults:
        raise ConfigError(
            f"the {len(summaries)} processes would not read one stream: {'; '.join(faults)}; "
            "give all of them the same settings, and each its own rank"
        )


def _values(name: str, facts: Sequence[Any]) -> str | None:
    by_value: dict[str, list[int]] = {}
    for process, value in enumerate(facts):
        by_value.setdefault(repr(value), []).append(process)
    if len(by_value) == 1:
        return None
    # What most processes have is named first: the others are likely the wrong ones.
    groups = sorted(by_value.items(), key=lambda item: -len(item[1]))
    values = " and ".join(f"{value} {_where(group)}" for value, group in groups)
    return f"{name} is {values}{settings_of(name)}"


def _where(processes: Sequence[int]) -> str:
    if len(processes) > MOST_NAMED:
        return f"in {len(processes)} processes"
    return f"in process{'es' if processes[1:] else ''} {', '.join(map(str, processes))}"


def _ranks(summaries: Sequence[RankSummary]) -> str | None:
    """Check that every rank is read, and by as many processes as every other."""
    world_size = summaries[0].world_size
    times = Counter(summary.rank for summary in summaries)
    missing = [rank for rank in range(world_size) if rank not in times]
    if missing:
        some = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if missing[MOST_NAMED:] else "")
        return f"nobody reads rank {some} of {world_size}"
    (most, often), (least, seldom) = times.most_common()[0], times.most_common()[-1]
    if often == seldom:
        return None
    return f"rank {most} is read by {often} processes and rank {least} by {seldom}"
