"""Windows of steps, cut out of Examples that each hold an episode.

A feature of the steps has as many items in a record as the episode has steps, and gives each window
some of them. The others give each window of an episode the same value. Pictures are decoded last,
and only those that a window of the batch has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import from_description, is_pair
from streamrec.formats.examples.faults import ColumnFault, explain
from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import (
    Claims,
    Needs,
    decode_anew,
    one_by_one,
)
from streamrec.formats.examples.renaming import AS_STORED
from streamrec.formats.examples.specs import VarLenFeature, feature_of
from streamrec.kernel.contract import fresh
from streamrec.suggestions import did_you_mean
from streamrec.values.columns import BytesColumn, Ragged, pick_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.config.record_choice import Window
    from streamrec.formats.examples.episode_pictures import PictureWindows
    from streamrec.formats.examples.faults import UrlOf
    from streamrec.formats.examples.needs import FillPicture, Share
    from streamrec.formats.examples.renaming import Renames
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Column, Indices
    from streamrec.values.record_rows import RecordRows

FIRST, MASK = "window/first", "window/mask"
"""The columns with the number of each window's first step, and whether its steps are there."""


def first_steps(steps: int, window: Window) -> Indices:
    """Return the first step of each window of an episode of so many steps; below 0: padding."""
    if window.pad is None:
        return np.arange(0, steps - window.length + 1, window.stride)
    begins = np.arange(0, steps, window.stride)
    return begins if window.pad == "end" else begins - window.length + 1


@dataclass(frozen=True)
class EpisodeSpecs:
    """The features of episodes, as they are parsed before windows are cut."""

    every: dict[str, Any]
    """The specs by name; pictures of steps stay encoded."""
    encoded: dict[str, Any]
    """Those of the pictures of steps."""
    pictures: dict[str, Image]
    """The specs of single pictures of steps."""

    @classmethod
    def of(cls, plain: Mapping[str, Any], window: Window) -> EpisodeSpecs:
        """Check the features in their plain form.

        Raises:
            ConfigError: They cannot be cut into windows.
        """
        if is_pair(plain):
            raise ConfigError("episodes are Examples, and these features are of SequenceExamples")
        specs = from_description(plain)
        for name in window.future or {}:
            if name not in specs:
                hint = did_you_mean(name, specs, f"there are {', '.join(specs)}")
                raise ConfigError(f"future of Window names the feature {name!r}; {hint}")
        several = {n: s for n, s in specs.items() if isinstance(s, Image) and s.sequence}
        for name, spec in several.items():
            if spec.size is None:
                raise ConfigError(
                    f"the pictures {name!r} of a window need one size; give its Image a shape or "
                    "resize"
                )
        encoded = {n: VarLenFeature("bytes", key=s.key) for n, s in several.items()}
        single = {n: replace(s, sequence=False) for n, s in several.items()}
        return cls(specs | encoded, encoded, single)


class EpisodeParser:
    """A parser of windows; its rows are episodes, with the first step of each window.

    Args:
        plain: The features in their plain form.
        window: The setting.
        capacity: Bytes of episodes' pictures to keep for further batches.
        allocate: As in ``FeatureParser``.
        share: As in ``FeatureParser``.
        fill_picture: As in ``FeatureParser``.
        claims: As in ``FeatureParser``.
        renames: As in ``FeatureParser``.

    Raises:
        ConfigError: The features cannot be cut into windows.
    """

    def __init__(
        self,
        plain: Mapping[str, Any],
        window: Window,
        *,
        capacity: int = 0,
        allocate: Allocate = fresh,
        share: Share = one_by_one,
        fill_picture: FillPicture = decode_anew,
        claims: Claims | None = None,
        renames: Renames = AS_STORED,
    ) -> None:
        self._window = window
        self._claims = claims or Claims()
        specs = EpisodeSpecs.of(plain, window)
        self._names = {name: feature_of(name, spec) for name, spec in specs.every.items()}
        others = {n: s for n, s in specs.every.items() if n not in specs.encoded}
        self._parser = FeatureParser(others, pad=False, claims=self._claims, renames=renames)
        own = Claims(self._claims.limits)  # what it parses is kept, and is no part of the batch
        self._encoded = FeatureParser(specs.encoded, claims=own, renames=renames)
        self._encoded_names = [*specs.encoded]
        self._pictures: PictureWindows | None = None
        if specs.pictures:
            from streamrec.formats.examples import episode_pictures  # and the codecs

            self._pictures = episode_pictures.PictureWindows(
                specs.pictures,
                self._encoded,
                window,
                capacity=capacity,
                needs=Needs(allocate, share, fill_picture, self._claims),
                scratch=Needs(fresh, share, fill_picture, self._claims),
            )
        # Of pictures alone: other values are as large as in their records.
        self.row_bytes = sum(
            math.prod((*spec.size, spec.channels, window.steps_of(name)))
            for name, spec in specs.pictures.items()
            if spec.size is not None
        )
        """Bytes of the pictures of a window."""

    def count(self, rows: RecordRows, url_of: UrlOf | None = None) -> Indices:
        """Return int64 ``[rows]``: the steps of each episode.

        Raises:
            DataError: A record is damaged, or its features have different numbers of steps.
        """
        columns = self._parser.parse(rows, url_of) | self._encoded.parse(rows, url_of)
        return self._steps(_counts(columns), rows, url_of)

    def parse(self, rows: RecordRows, url_of: UrlOf | None = None) -> dict[str, Column]:
        """Return the columns of windows.

        Args:
            rows: The windows: episodes, with their ``steps``.
            url_of: A function from a shard's number to its URL, for errors.

        Raises:
            DataError: A record is damaged, or a picture cannot be decoded.
        """
        assert rows.steps is not None
        places = np.stack([rows.buffer_index.astype(np.int64), rows.offsets])
        _, firsts, of_row = np.unique(places, axis=1, return_index=True, return_inverse=True)
        of_row = of_row.reshape(-1)
        whole = rows.pick(firsts)
        columns = self._parser.parse(whole, url_of)
        episodes = self._pictures.read(whole, url_of) if self._pictures else []
        counts = _counts(columns)
        for name in self._encoded_names:
            counts[name] = np.array([len(one.encoded[name]) for one in episodes], np.int64)
        steps = self._steps(counts, whole, url_of)[of_row]
        made: dict[str, Column] = {}
        try:
            for name in self._names:
                inside = self._inside(name, rows.steps, steps)
                if name in columns:
                    made[name] = self._cut(name, columns[name], of_row, inside)
                elif self._pictures:
                    made[name] = self._pictures.cut(name, episodes, of_row, inside)
        except ColumnFault as fault:
            raise explain(fault, rows, {}, sequence=False, url_of=url_of) from None
        inside = rows.steps[:, None] + np.arange(self._window.length)
        made[FIRST] = rows.steps.copy()
        made[MASK] = (inside >= 0) & (inside < steps[:, None])
        return made

    def _steps(
        self, counts: Mapping[str, Indices], rows: RecordRows, url_of: UrlOf | None
    ) -> Indices:
        """Return the steps of each episode, which all features of steps must have."""
        if not counts:
            raise ConfigError(
                "no feature holds a step's values for each step; give features with "
                "VarLenFeature, RaggedFeature or Image(sequence=True)"
            )
        first, *others = (name for name in self._names if name in counts)
        for name in others:
            odd = np.flatnonzero(counts[name] != counts[first])
            if len(odd):
                row = int(odd[0])
                message = (
                    f"the episode has {counts[name][row]} steps here, and {counts[first][row]} in "
                    f"feature {first!r}; leave one of them out"
                )
                fault = ColumnFault(row, self._names[name], message)
                raise explain(fault, rows, {}, sequence=False, url_of=url_of)
        return counts[first]

    def _inside(self, name: str, begins: Indices, steps: Indices) -> Indices:
        """Return int64 ``[windows, steps]``: the steps of each window in its episode."""
        inside = begins[:, None] + np.arange(self._window.steps_of(name))
        # Outside of the episode, its first or last step is repeated.
        clipped: Indices = np.clip(inside, 0, np.maximum(steps - 1, 0)[:, None])
        return clipped

    def _cut(self, name: str, column: Column, of_row: Indices, inside: Indices) -> Column:
        """Return a feature's values of each window."""
        if not isinstance(column, Ragged):
            repeated: Column = _pick(column, of_row)
            return repeated
        values: Any = column.values
        if isinstance(values, Ragged):
            raise ColumnFault(0, name, "its steps have different sizes; leave it out of features")
        rows, count = inside.shape
        item = values.item_shape if isinstance(values, BytesColumn) else values.shape[1:]
        size = 8 if isinstance(values, BytesColumn) else values[:1].nbytes
        self._claims.rows(np.full(rows, count), rows * count, size, name)
        picked = _pick(values, (column.row_splits[of_row][:, None] + inside).reshape(-1))
        if isinstance(picked, BytesColumn):
            return BytesColumn(picked.values, picked.offsets, (count, *item), rows)
        cut: Column = picked.reshape(rows, count, *item)
        return cut


def _counts(columns: Mapping[str, Column]) -> dict[str, Indices]:
    """Return the items in each record of the features that have any number of them."""
    return {n: np.diff(c.row_splits) for n, c in columns.items() if isinstance(c, Ragged)}


def _pick(values: Any, places: Indices) -> Any:
    """Return some rows of a column."""
    if not isinstance(values, np.ndarray | BytesColumn):
        raise ColumnFault(0, "", "a feature of episodes has arrays of different shapes")
    return pick_rows(values, places)
