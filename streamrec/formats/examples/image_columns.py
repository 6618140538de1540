"""Columns of decoded pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import DataError
from streamrec.formats.examples.faults import PICTURE, ColumnFault
from streamrec.formats.examples.needs import Make, Needs, row_of
from streamrec.formats.images.image import read_picture
from streamrec.formats.images.picture import (
    CropWindow,
    OutputForm,
    at_least,
    fill_resized,
    library,
    turbo,
    work_of,
)
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from streamrec.values.columns import Arrays, BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.image_spec import Image
    from streamrec.formats.images.picture import Picture
    from streamrec.values.columns import Column

    Decode = Callable[[Sequence[memoryview]], npt.NDArray[Any] | Arrays]


def compile_image(name: str, spec: Image, needs: Needs, kind: ColumnKind) -> Make:
    """Prepare a column of pictures.

    Args:
        name: The feature's.
        spec: What to make.
        needs: Takes what the kernel has to parse for it.
        kind: ``FIXED``: a picture a record; ``VARLEN``: any number of them; ``STEPS``: a picture a
            step of a feature list.

    Raises:
        ConfigError: A library is not installed, or another spec contradicts this one.
    """
    _require_codecs()
    index = needs.add(ColumnPlan(name, kind, DataType.BYTES), PICTURE)

    def make(columns: Sequence[Any]) -> Column:
        column = columns[index]
        if kind is ColumnKind.FIXED:
            return _decode(views_of(column), name, spec, needs)
        try:
            strings = column.values
            if kind is ColumnKind.STEPS:
                _check_each_is_one(strings, name)
                strings = strings.values
            return Ragged(_decode(views_of(strings), name, spec, needs), column.row_splits)
        except ColumnFault as fault:
            row = row_of(fault.row, column)
            step = fault.row - int(column.row_splits[row])
            raise ColumnFault(row, name, f"step {step}: {fault.message}", fault.kind) from None

    return make


def _check_each_is_one(steps: Ragged, name: str) -> None:
    counts = np.diff(steps.row_splits)
    odd = np.flatnonzero(counts != 1)
    if len(odd):
        why = f"it holds {counts[odd[0]]} byte strings, but Image takes one; use VarLenFeature"
        raise ColumnFault(int(odd[0]), name, why)


def compile_decoder(name: str, spec: Image, needs: Needs) -> Decode:
    """Prepare a function that decodes pictures; they may lie anywhere.

    The row of a :class:`ColumnFault` is the picture's number.

    Args:
        name: The feature's.
        spec: What to make.
        needs: Gives memory and threads; nothing is parsed.

    Raises:
        ConfigError: A library is not installed.
    """
    _require_codecs()
    return lambda encoded: _decode(encoded, name, spec, needs)


def _require_codecs() -> None:
    # Asked when the column is planned: what is missing shows before the first batch.
    library()
    turbo()


def views_of(column: BytesColumn) -> list[memoryview]:
    """Return each byte string of a column, without a copy."""
    # Python's ints, since slices by NumPy's scalars are slower.
    octets, offsets = column.values.data, column.offsets.tolist()
    return [octets[begin:end] for begin, end in pairwise(offsets)]


def _decode(
    encoded: Sequence[memoryview], name: str, spec: Image, needs: Needs
) -> npt.NDArray[Any] | Arrays:
    """Decode pictures; the row of a :class:`ColumnFault` is the picture's number."""
    claims, count = needs.claims, len(encoded)
    wanted = _output_form(spec, claims.limits.max_pixels)
    pixel = np.dtype(np.uint16 if wanted.bits == 16 else np.uint8)
    found: dict[int, Picture] = {}
    shapes = np.empty((count, 3), np.int64)
    works = np.zeros(count, np.int64)

    # These run in several threads at once.
    def read(number: int) -> None:
        try:
            picture = read_picture(encoded[number], wanted)
        except DataError as error:
            raise ColumnFault(number, name, error.message, type(error)) from None
        if spec.shape not in (None, picture.shape[:2]):
            raise ColumnFault(number, name, _other_size(picture, spec))
        if picture.dtype != pixel:
            why = f"the picture has pixels of {np.dtype(picture.dtype)}, but the spec says uint16"
            raise ColumnFault(number, name, f"{why}; leave out dtype")
        found[number] = picture
        shapes[number] = picture.shape
        if spec.size is not None:
            shapes[number, :2] = spec.size
        works[number] = work_of(picture, tuple(shapes[number].tolist()))

    def decode(number: int) -> None:
        # Taken out, so that what a reader holds goes when its picture is done.
        picture, target = found.pop(number), pictures[number]
        try:
            # The cache keeps bytes.
            octets_of = target.view(np.uint8)
            needs.fill_picture(
                encoded[number], wanted, octets_of, lambda: fill_resized(picture, target)
            )
        except DataError as error:
            raise ColumnFault(number, name, error.message, type(error)) from None

    # All headers come first: nothing is set aside before it is known that all of it fits.
    needs.share(read, count, count)
    sizes = shapes.prod(axis=1) * pixel.itemsize
    at_once = claims.pictures(sizes.tolist(), works.tolist(), name, spec.max_bytes)
    places = offsets_of(sizes)
    memory = needs.allocate(int(places[-1]))
    pictures = Arrays(memory.view(pixel), places // pixel.itemsize, shapes)
    needs.share(decode, count, at_once)
    return _column_of(pictures, spec)


def _column_of(pictures: Arrays, spec: Image) -> npt.NDArray[Any] | Arrays:
    """Return decoded pictures as their spec gives them, in the same memory."""
    values: Any = pictures.values
    offsets, shapes = pictures.offsets, pictures.shapes
    if spec.dtype == "float32":
        # Four channels of a byte are one number.
        own = np.dtype(np.float32)
        values = values.view(own.newbyteorder("<")).astype(own, copy=False)
        offsets, shapes = offsets // 4, shapes // np.array([1, 1, 4])
    if spec.size is None:
        return Arrays(values, offsets, shapes)
    dense: npt.NDArray[Any] = values.reshape(len(shapes), *spec.size, spec.channels)
    return dense


def _output_form(spec: Image, max_pixels: int) -> OutputForm:
    """Return the form of the pictures; a window is in pixels of the whole, not of a fraction."""
    window = None if spec.crop is None else CropWindow(*spec.crop)
    least = at_least(None if window else spec.resize)
    return OutputForm(
        4 if spec.dtype == "float32" else spec.channels,
        16 if spec.dtype == "uint16" else 8,
        dct_method=spec.dct_method,
        least=least,
        window=window,
        max_pixels=spec.max_pixels or max_pixels,
    )


def _other_size(picture: Picture, spec: Image) -> str:
    return (
        f"the picture has {picture.shape[0]} x {picture.shape[1]} pixels, but the spec says "
        f"{spec.shape[0]} x {spec.shape[1]}; give resize instead of shape, or leave out shape"
    )
