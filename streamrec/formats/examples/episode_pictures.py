"""The pictures of windows, of which each is decoded once where several windows have it.

A window shares its episode's pictures with others, most of which stand in other batches. So the
episodes that were used last are kept while there is room: their encoded pictures, and of those that
several windows have the decoded ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.examples.faults import ColumnFault
from streamrec.formats.examples.image_columns import compile_decoder, views_of
from streamrec.formats.examples.specs import feature_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from streamrec.config.record_choice import Window
    from streamrec.formats.examples.faults import UrlOf
    from streamrec.formats.examples.features import FeatureParser
    from streamrec.formats.examples.image_columns import Decode
    from streamrec.formats.examples.image_spec import Image
    from streamrec.formats.examples.needs import Needs
    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordRows

    Record = tuple[int, int]
    Place = tuple[str, int]
    Slot = tuple[int, int]  # the number of an episode among those of the batch, and a step
    Pixels = npt.NDArray[Any]

TOGETHER = 32
"""Pictures that are decoded before other threads find them: so many may be decoded twice."""


@dataclass(eq=False)
class EpisodePictures:
    """The pictures of one episode."""

    record: Record
    """Its shard, and the number of its record there."""
    encoded: Mapping[str, Sequence[memoryview]]
    """The pictures of each feature, by step."""
    nbytes: int
    """Bytes of all that is held."""
    decoded: dict[Place, Pixels] = field(default_factory=dict)
    """Some of them, by feature and step."""


class KeptEpisodes:
    """The pictures of the episodes that were used last, for any number of threads.

    Args:
        capacity: Bytes of all of them together.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._episodes: OrderedDict[Record, EpisodePictures] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<KeptEpisodes: {len(self._episodes)}, {self._free} of {self._capacity} bytes free>"

    def find(self, record: Record) -> EpisodePictures | None:
        """Return an episode's pictures, if they are kept."""
        with self._lock:
            if record in self._episodes:
                self._episodes.move_to_end(record)
            return self._episodes.get(record)

    def keep(self, episode: EpisodePictures) -> EpisodePictures:
        """Keep an episode; return the one that is kept, which may be another thread's."""
        with self._lock:
            kept = self._episodes.setdefault(episode.record, episode)
            if kept is episode:
                self._take(episode.nbytes)
            return kept

    def add(self, episode: EpisodePictures, place: Place, picture: Pixels) -> Pixels:
        """Keep a copy of a decoded picture while its episode is kept; return what may be used."""
        if self._episodes.get(episode.record) is not episode:
            return picture
        copy = picture.copy()  # a part would hold all that were decoded together
        with self._lock:
            if self._episodes.get(episode.record) is episode and place not in episode.decoded:
                episode.decoded[place] = copy
                episode.nbytes += copy.nbytes
                self._take(copy.nbytes)
        return copy

    def _take(self, nbytes: int) -> None:
        self._free -= nbytes
        while self._free < 0 and self._episodes:
            _, longest_unused = self._episodes.popitem(last=False)
            self._free += longest_unused.nbytes


class PictureWindows:
    """The pictures of windows, decoded.

    Args:
        specs: The specs of single pictures, by the columns' names.
        parser: Parses the features of these names as byte strings.
        window: The setting.
        capacity: Bytes of pictures to keep for further batches.
        needs: Gives the memory of columns, and threads that decode.
        scratch: The same, with memory for pictures that are copied into columns.

    Raises:
        ConfigError: A library is not installed.
    """

    def __init__(
        self,
        specs: Mapping[str, Image],
        parser: FeatureParser,
        window: Window,
        *,
        capacity: int,
        needs: Needs,
        scratch: Needs,
    ) -> None:
        self._parser = parser
        self._is_shared = {name: window.stride < window.steps_of(name) for name in specs}
        self._needs = needs
        self._kept = KeptEpisodes(capacity)
        self._in_place = _decoders(specs, needs)
        self._apart = _decoders(specs, scratch)

    def read(self, whole: RecordRows, url_of: UrlOf | None) -> list[EpisodePictures]:
        """Return the pictures of each episode, encoded.

        Raises:
            DataError: A record is damaged.
        """
        records = zip(whole.shards.tolist(), whole.ordinals.tolist(), strict=True)
        return [
            self._kept.find(record) or self._parse(whole, row, record, url_of)
            for row, record in enumerate(records)
        ]

    def _parse(
        self, whole: RecordRows, row: int, record: Record, url_of: UrlOf | None
    ) -> EpisodePictures:
        columns: Mapping[str, Any] = self._parser.parse(whole.take(np.array([row])), url_of)
        nbytes = sum(column.values.values.nbytes for column in columns.values())
        encoded = {name: views_of(column.values) for name, column in columns.items()}
        return self._kept.keep(EpisodePictures(record, encoded, nbytes))

    def cut(
        self, name: str, episodes: Sequence[EpisodePictures], of_row: Indices, inside: Indices
    ) -> Pixels:
        """Return a feature's pictures, ``[windows, steps, height, width, channels]``.

        Args:
            name: The feature.
            episodes: The episodes.
            of_row: int64 ``[windows]``: the number of each window's episode.
            inside: int64 ``[windows, steps]``: the steps of each window in its episode.

        Raises:
            ColumnFault: A picture cannot be decoded, or they take too much memory.
        """
        steps = inside.shape[1]
        numbers = np.repeat(of_row, steps)
        slots = list(zip(numbers.tolist(), inside.reshape(-1).tolist(), strict=True))
        # In the order of the batch, so that threads begin with different ones.
        firsts: dict[Slot, int] = {}
        for at, slot in enumerate(slots):
            firsts.setdefault(slot, at)
        try:
            if not slots or (len(firsts) == len(slots) and not self._is_shared[name]):
                pictures: Any = self._in_place[name](_views(name, episodes, slots))
            else:
                pictures = self._gather(name, episodes, slots, firsts, len(inside))
        except ColumnFault as fault:
            fault.row //= steps
            raise
        windows: Pixels = pictures.reshape(*inside.shape, *pictures.shape[1:])
        return windows

    def _gather(
        self,
        name: str,
        episodes: Sequence[EpisodePictures],
        slots: Sequence[Slot],
        firsts: Mapping[Slot, int],
        rows: int,
    ) -> Pixels:
        """Return the pictures of all slots, each of which is decoded once, or was."""
        distinct = list(firsts)
        found: dict[Slot, Pixels] = {}
        for first in range(0, len(distinct), TOGETHER):
            some = distinct[first : first + TOGETHER]
            kept = {slot: episodes[slot[0]].decoded.get((name, slot[1])) for slot in some}
            found |= {slot: picture for slot, picture in kept.items() if picture is not None}
            missing = [slot for slot, picture in kept.items() if picture is None]
            found |= self._decode(name, episodes, missing, firsts)
        like, steps = found[slots[0]], len(slots) // rows
        self._needs.claims.rows(np.full(rows, steps), len(slots), like.nbytes, name)
        memory = self._needs.allocate(len(slots) * like.nbytes)
        pictures = memory.view(like.dtype).reshape(len(slots), *like.shape)
        for at, slot in enumerate(slots):
            pictures[at] = found[slot]
        return pictures

    def _decode(
        self,
        name: str,
        episodes: Sequence[EpisodePictures],
        slots: Sequence[Slot],
        firsts: Mapping[Slot, int],
    ) -> dict[Slot, Pixels]:
        """Decode some pictures, and keep those that further windows may have."""
        if not slots:
            return {}
        try:
            pictures: Any = self._apart[name](_views(name, episodes, slots))
        except ColumnFault as fault:
            fault.row = firsts[slots[fault.row]]
            raise
        found: dict[Slot, Pixels] = dict(zip(slots, pictures, strict=True))
        if self._is_shared[name]:
            for (number, step), picture in found.items():
                found[number, step] = self._kept.add(episodes[number], (name, step), picture)
        return found


def _decoders(specs: Mapping[str, Image], needs: Needs) -> dict[str, Decode]:
    return {
        name: compile_decoder(feature_of(name, spec), spec, needs) for name, spec in specs.items()
    }


def _views(
    name: str, episodes: Sequence[EpisodePictures], slots: Sequence[Slot]
) -> list[memoryview]:
    return [episodes[number].encoded[name][step] for number, step in slots]
