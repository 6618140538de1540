"""Shards that were damaged after they were indexed, and what an index makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from streamrec.formats.shards.index import Index
from streamrec.formats.shards.index_names import index_url
from streamrec.formats.shards.tfrecord import frame
from tests.formats.damaged_shards import KINDS, oracle, payloads
from tests.plan.record_orders import entry_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Place = tuple[int, int]
"""(shard, number)."""


class Damaged(NamedTuple):
    """Shards as they were indexed and as they are now: of the same size."""

    intact: tuple[tuple[bytes, ...], ...]
    """The payloads."""
    now: tuple[bytes, ...]
    chunk_bytes: int

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(len, payloads)) for payloads in self.intact)

    @property
    def records(self) -> int:
        return sum(map(len, self.intact))

    @property
    def described(self) -> Index:
        names = [f"part-{number:05}.tfrecord" for number in range(len(self.now))]
        shards = (b"".join(map(frame, shard)) for shard in self.intact)
        facts = zip(names, shards, self.lengths, strict=True)
        return Index(tuple(entry_of(*shard, self.chunk_bytes) for shard in facts))

    def write(self, directory: Path) -> str:
        """Write shards and index, and return a glob that finds the shards."""
        directory.mkdir(parents=True, exist_ok=True)
        urls = [f"{directory}/{found.name}" for found in self.described.entries]
        for url, content in zip(urls, self.now, strict=True):
            Path(url).write_bytes(content)
        Path(index_url(urls)).write_bytes(self.described.encode())
        return f"{directory}/part-*.tfrecord"

    def rows(self) -> dict[Place, bytes | None]:
        """Return the content of each record's place: the record, or ``None`` if it is lost."""
        return dict(self._rows())

    def _rows(self) -> Iterator[tuple[Place, bytes | None]]:
        for shard, found in enumerate(self.described.entries):
            begins, firsts = [*found.begins, found.size], [*found.first_records, found.records]
            for chunk, first in enumerate(firsts[:-1]):
                content = self.now[shard][begins[chunk] : begins[chunk + 1]]
                count = firsts[chunk + 1] - first
                rows = (row_of(content) + [None] * count)[:count]
                yield from (((shard, first + i), row) for i, row in enumerate(rows))

    def lost(self) -> int:
        return sum(row is None for row in self.rows().values())


def row_of(chunk: bytes) -> list[bytes | None]:
    """Return a chunk's provable records, with ``None`` for damage that is exactly one record."""
    whole, gaps = oracle(chunk)
    found: list[tuple[int, bytes | None]] = [(one.offset, one.payload) for one in whole]
    found += [(gap.begin, None) for gap in gaps if gap.exact]
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


@st.composite
def damaged(draw: Any, least: int = 1, most: int = 7, damages: int = 3) -> Damaged:
    """Draw shards with a few damages, none of which changes a shard's size."""
    records = st.lists(payloads, max_size=most).map(tuple)
    shards = draw(
        st.lists(records, min_size=1, max_size=3)
        .map(tuple)
        .filter(lambda few: sum(map(len, few)) >= least)
    )
    now = []
    for shard in shards:
        intact = b"".join(map(frame, shard))
        content = bytearray(intact)
        for _ in range(draw(st.integers(0, damages))):
            draw(st.sampled_from(KINDS))(draw, content)
        now.append(bytes(content[: len(intact)]).ljust(len(intact), b"\0"))
    return Damaged(shards, tuple(now), draw(st.integers(1, 200)))
