"""Columns of decoded pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import DataError, MalformedImage, WrongFeatureType
from streamrec.formats.examples.descriptions import from_description, is_pair, pair_from_description
from streamrec.formats.examples.faults import PICTURE, ColumnFault
from streamrec.formats.examples.needs import Make, Needs, row_of
from streamrec.formats.examples.specs import FeatureSpec, Image
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import library
from streamrec.kernel.contract import ColumnPlan, DataType, Kind
from streamrec.values.columns import BytesColumn, Pictures, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.formats.images.picture import Picture
    from streamrec.values.columns import Column

__all__ = ["Growth", "compile_frames", "compile_image", "growth_of"]

USUAL_GROWTH = 12
"""Bytes of pixels for one of a JPEG, where nothing says more: photographs have about two bits a
pixel. PNG has more."""


def compile_image(name: str, spec: Image, needs: Needs) -> Make:
    """Prepare the column of a picture a record.

    Args:
        name: The feature's.
        spec: What to make.
        needs: Takes what the kernel has to parse for it.

    Raises:
        ConfigError: Pillow is not installed, or another spec contradicts this one.
    """
    library()
    index = needs.add(ColumnPlan(name, Kind.FIXED, DataType.BYTES), PICTURE)

    def make(columns: Sequence[Any]) -> Column:
        try:
            return _decoded(columns[index], spec, needs)
        except _Fault as fault:
            raise ColumnFault(fault.number, name, fault.why, fault.kind) from None

    return make


def compile_frames(name: str, spec: Image, needs: Needs) -> Make:
    """Prepare the column of a feature list of which each step is a picture.

    Args:
        name: The feature list's.
        spec: What to make.
        needs: Takes what the kernel has to parse for it.

    Raises:
        ConfigError: Pillow is not installed, or another spec contradicts this one.
    """
    library()
    index = needs.add(ColumnPlan(name, Kind.STEPS, DataType.BYTES), PICTURE)

    def make(columns: Sequence[Any]) -> Column:
        column: Ragged = columns[index]
        steps: Any = column.values
        try:
            _check_each_is_one(steps)
            return Ragged(_decoded(steps.values, spec, needs), column.row_splits)
        except _Fault as fault:
            row = row_of(fault.number, column)
            step = fault.number - int(column.row_splits[row])
            raise ColumnFault(row, name, f"step {step}: {fault.why}", fault.kind) from None

    return make


class _Fault(Exception):
    """A picture cannot be taken; ``number`` is its place in the column."""

    def __init__(self, number: int, why: str, kind: type[DataError]) -> None:
        super().__init__(number, why, kind)
        self.number = number
        self.why = why
        self.kind = kind


def _check_each_is_one(steps: Ragged) -> None:
    counts = np.diff(steps.row_splits)
    odd = np.flatnonzero(counts != 1)
    if len(odd):
        why = f"it holds {counts[odd[0]]} byte strings, but Image takes one; use VarLenFeature"
        raise _Fault(int(odd[0]), why, WrongFeatureType)


def _decoded(column: BytesColumn, spec: Image, needs: Needs) -> npt.NDArray[np.uint8] | Pictures:
    encoded = _Encoded(column, spec)
    if spec.shape is None:
        return _of_any_size(encoded, needs)
    shape = (len(column), *spec.shape, spec.channels)
    decoded = _array(shape, needs)
    needs.share(
        lambda number: encoded.decode(number, encoded.read(number), decoded[number]), len(column)
    )
    return decoded


def _of_any_size(encoded: _Encoded, needs: Needs) -> Pictures:
    """Read sizes first, so that the pictures are decoded to where they stay."""
    count = len(encoded)
    shapes = np.empty((count, 3), np.int64)
    read: dict[int, Picture] = {}

    def measure(number: int) -> None:
        read[number] = encoded.read(number)
        shapes[number] = read[number].shape

    needs.share(measure, count)
    offsets = offsets_of(shapes.prod(axis=1))
    values = _array((int(offsets[-1]),), needs)
    pictures = Pictures(values, offsets, shapes)
    needs.share(lambda number: encoded.decode(number, read[number], pictures[number]), count)
    return pictures


def _array(shape: tuple[int, ...], needs: Needs) -> npt.NDArray[np.uint8]:
    return needs.allocate(math.prod(shape)).reshape(shape)


class _Encoded:
    """A column of encoded pictures; used from several threads at once."""

    def __init__(self, column: BytesColumn, spec: Image) -> None:
        self._octets = column.values.data
        self._offsets = column.offsets.tolist()
        self._spec = spec

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, number: int) -> Picture:
        """Read one picture's size, and check it against the spec."""
        octets = self._octets[self._offsets[number] : self._offsets[number + 1]]
        try:
            picture = read_picture(octets, self._spec.channels)
        except DataError as error:
            raise _Fault(number, error.message, type(error)) from None
        if self._spec.shape not in (None, picture.shape[:2]):
            raise _Fault(number, _other_size(picture, self._spec), WrongFeatureType)
        return picture

    def decode(self, number: int, picture: Picture, target: npt.NDArray[np.uint8]) -> None:
        """Decode one picture, which was read before, into an array of its shape."""
        try:
            target[...] = picture.decode()
        except MalformedImage as error:
            raise _Fault(number, error.message, type(error)) from None


def _other_size(picture: Picture, spec: Image) -> str:
    return (
        f"the picture has {picture.shape[0]} x {picture.shape[1]} pixels, but the spec says "
        f"{spec.shape[0]} x {spec.shape[1]}; resize it when it is written, or leave out shape"
    )


class Growth(NamedTuple):
    """How much memory the pictures of a batch take."""

    row: int
    """Bytes a row, of pictures whose size is known."""
    factor: int
    """Times the bytes of the records, of the others: an estimate."""

    def size(self, rows: int, nbytes: int) -> int:
        """Bytes of a batch.

        Args:
            rows: Its rows.
            nbytes: The size of its records.
        """
        return rows * self.row + nbytes * self.factor


def growth_of(plain: Mapping[str, Any] | None) -> Growth:
    """Return how records grow when their pictures are decoded.

    Args:
        plain: The features in their plain form; ``None``: the records stay as they are.
    """
    single, several = _specs(plain)
    images = [spec for spec in single if isinstance(spec, Image)]
    known = sum(math.prod(spec.shape) * spec.channels for spec in images if spec.shape)
    unknown = any(spec.shape is None for spec in images)
    unknown |= any(isinstance(spec, Image) for spec in several)
    return Growth(known, USUAL_GROWTH if unknown else 1)


def _specs(
    plain: Mapping[str, Any] | None,
) -> tuple[Iterable[FeatureSpec], Iterable[FeatureSpec]]:
    """Return the specs of one value a record, and those of feature lists."""
    if plain is None:
        return (), ()
    if not is_pair(plain):
        return from_description(plain).values(), ()
    pair = pair_from_description(plain)
    return pair.context.values(), pair.sequence.values()
