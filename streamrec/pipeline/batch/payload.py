"""Batches as the metadata and the buffers of a BATCH message.

The metadata describes every array; the payload holds the arrays as they are in memory, in the order
of the metadata, each from the next multiple of 64. Nothing is copied on either side: encoding gives
views of the batch's memory, decoding gives views of the received one. Numbers travel little-endian.

What is decoded comes from outside. Every size is compared with the payload before an array is made,
every offset before a string can be taken by it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import LocalProtocolError, RemoteProtocolError, StateError
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Components, Origin
from streamrec.pipeline.batch.payload_reader import (
    DTYPES,
    MOST_DIMENSIONS,
    PROTO,
    VIEWED,
    PayloadReader,
    check,
    layout,
)
from streamrec.plan.state.position import NUMBERS, Position
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, cut, offsets_of, volumes
from streamrec.values.message_schema import unreadable
from streamrec.wire.frame import ALIGNMENT
from streamrec.wire.messages import BatchMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.values.columns import Column, Values

NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_REMEMBERED = 64 << 10
"""Bytes of the largest description of columns that is kept for the next batch."""
ZEROS = memoryview(bytes(ALIGNMENT))


def encode(batch: Batch) -> BatchMessage:
    """Describe a batch; the message's payload views the batch's own arrays.

    Raises:
        LocalProtocolError: A column has a type that cannot travel.
    """
    metadata = PROTO["Batch"](
        rows=batch.rows,
        epoch=batch.epoch,
        position=batch.next_position.numbers,
        mask=batch.mask is not None,
    )
    if batch.components is not None:
        metadata.component_names.extend(batch.components.names)
        metadata.component_shards.extend(batch.components.first_shards)
    payload = _Payload()
    payload.add(batch.origin.shards.astype(np.int32, copy=False))
    payload.add(batch.origin.records.astype(np.int64, copy=False))
    standing = batch.next_position.rows
    metadata.position.rows = len(standing)
    payload.add(standing)
    if batch.mask is not None:
        payload.add(batch.mask.astype(np.bool_, copy=False))
    described = _encode_columns(batch.columns, payload)
    # Protobufs end to end are one: their lists add up.
    return BatchMessage(metadata.SerializeToString() + described, tuple(payload.buffers))


def encode_columns(columns: Mapping[str, Column], rows: int) -> BatchMessage:
    """Describe columns alone, as those of a batch.

    Raises:
        LocalProtocolError: A column has a type that cannot travel.
    """
    payload = _Payload()
    described = _encode_columns(columns, payload)
    metadata = PROTO["Batch"](rows=rows).SerializeToString()
    return BatchMessage(metadata + described, tuple(payload.buffers))


def _encode_columns(columns: Mapping[str, Column], payload: _Payload) -> bytes:
    described: list[bytes] = []
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.ndim:
            described.append(_description(name, column.dtype, column.shape))
            payload.add(column)
        else:
            described.append(_encode_column(name, column, payload))
    return b"".join(described)


@lru_cache(maxsize=1024)
def _description(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return a batch's metadata with one column alone, an array: alike in nearly all batches."""
    metadata = PROTO["Batch"]()
    values = metadata.columns.add(name=name).values
    values.array.dtype = _name(dtype, shape)
    values.array.shape.extend(shape)
    return bytes(metadata.SerializeToString())


class _Payload:
    """The buffers of a payload, as far as it is encoded."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._size = 0

    def add(self, array: npt.NDArray[Any]) -> None:
        if not array.size:
            return
        # Each array begins at a multiple of 64, so that the receiver may use it where it lies.
        padding = -self._size % ALIGNMENT
        if padding:
            self.buffers.append(ZEROS[:padding])
        self.buffers.append(_bytes_of(array))
        self._size += padding + array.nbytes


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes, little-endian; a view where they are already so."""
    if array.flags.c_contiguous and array.dtype in VIEWED:
        return array.data.cast("B")
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def _encode_column(name: str, column: Column, payload: _Payload) -> bytes:
    """Add a column's arrays to the payload; return a batch's metadata with this column alone."""
    metadata = PROTO["Batch"]()
    proto = metadata.columns.add(name=name)
    if isinstance(column, Ragged):
        _encode_ragged(proto.ragged, column, payload)
    elif isinstance(column, Sparse):
        proto.sparse.count = len(column.indices)
        proto.sparse.dense_shape.extend(column.dense_shape)
        payload.add(column.indices.astype(np.int64, copy=False))
        _encode_values(proto.sparse.values, column.values, payload)
    else:
        _encode_values(proto.values, column, payload)
    return bytes(metadata.SerializeToString())


def _encode_ragged(proto: Any, column: Ragged, payload: _Payload) -> None:
    first, last = int(column.row_splits[0]), int(column.row_splits[-1])
    payload.add(column.row_splits.astype(np.int64, copy=False) - first)
    _encode_values(proto.values, cut(column.values, first, last), payload)


def _encode_values(proto: Any, values: Values, payload: _Payload) -> None:
    if isinstance(values, Ragged):
        _encode_ragged(proto.ragged, values, payload)
    elif isinstance(values, BytesColumn):
        _encode_bytes(proto.bytes, values, payload)
    elif isinstance(values, Arrays):
        _encode_arrays(proto.arrays, values, payload)
    else:
        proto.array.dtype = _name(values.dtype, values.shape)
        proto.array.shape.extend(values.shape)
        payload.add(values)


def _name(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return the name under which an array's dtype, of any byte order, travels.

    Raises:
        LocalProtocolError: It does not travel.
    """
    # NumPy makes a dtype's name anew each time it is asked for, so it is looked up where it can be.
    name = NAMES.get(dtype) or dtype.name
    if not shape or (name not in DTYPES and name != "bfloat16"):
        raise LocalProtocolError(f"an array of dtype {dtype} and shape {shape} cannot travel")
    return name


def _encode_bytes(proto: Any, column: BytesColumn, payload: _Payload) -> None:
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    proto.size, proto.count = last - first, len(column.offsets) - 1
    proto.item_shape.extend(column.item_shape)
    offsets = column.offsets.astype(np.int64, copy=False)
    # A column that was cut out of a larger one has offsets from its middle on.
    payload.add(offsets - first if first else offsets)
    payload.add(column.values[first:last])


def _encode_arrays(proto: Any, column: Arrays, payload: _Payload) -> None:
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    proto.dtype, proto.size = _name(column.values.dtype, column.values.shape), last - first
    proto.count, proto.dimensions = column.shapes.shape
    payload.add(column.shapes.astype(np.int64, copy=False))
    payload.add(column.values[first:last])


def decode(message: BatchMessage, fingerprint: Fingerprint, rank: int, world_size: int) -> Batch:
    """Return the batch of a received message, as views of its payload.

    The arrays are writable, C-contiguous and begin at multiples of 64.

    Args:
        message: As received.
        fingerprint: The stream's.
        rank: The rank that receives it.
        world_size: The number of ranks.

    Raises:
        RemoteProtocolError: The metadata cannot be read, or does not fit the payload.
    """
    metadata = _metadata_of(message, "BATCH")
    reader = PayloadReader(message.payload)
    rows = int(metadata.rows)
    shards = reader.array("int32", (rows,))
    records = reader.array("int64", (rows,))
    owned = fingerprint.lanes // world_size
    standing = reader.array("int64", (int(metadata.position.rows), owned))
    numbers: dict[str, Any] = {name: getattr(metadata.position, name) for name in NUMBERS}
    numbers["since"] = list(metadata.position.since)
    numbers |= {name: getattr(metadata.position, name) for name in ("origin", "ends")}
    mask = reader.array("bool", (rows,)) if metadata.mask else None
    columns = _decode_columns(metadata, reader)
    check(reader.left == 0, "{} bytes of the payload belong to no array", reader.left)
    try:
        position = Position.of(fingerprint, rank, world_size, numbers, standing)
    except StateError as error:
        raise RemoteProtocolError(f"the position of a batch cannot be read: {error}") from None
    origin, components = Origin(shards, records), _components(metadata)
    return Batch(
        columns=columns,
        rows=rows,
        epoch=int(metadata.epoch),
        origin=origin,
        next_position=position,
        mask=mask,
        components=components,
    )


def decode_columns(message: BatchMessage) -> dict[str, Column]:
    """Return the columns of :func:`encode_columns`, as views of the message's payload.

    Raises:
        RemoteProtocolError: The metadata cannot be read, or does not fit the payload.
    """
    return _decode_columns(_metadata_of(message, "columns"), PayloadReader(message.payload))


def _metadata_of(message: BatchMessage, name: str) -> Any:
    try:
        return PROTO["Batch"].FromString(message.metadata)
    except unreadable():
        raise RemoteProtocolError(f"the metadata of {name} is not its message") from None


def _decode_columns(metadata: Any, reader: PayloadReader) -> dict[str, Column]:
    # All that is left is alike in nearly all batches.
    metadata.ClearField("position")
    data = metadata.SerializeToString()
    places = layout(data) if len(data) <= MOST_REMEMBERED else None
    if places is not None:
        return reader.take_all(places)
    rows = int(metadata.rows)
    columns = {column.name: _decode_column(column, rows, reader) for column in metadata.columns}
    check(len(columns) == len(metadata.columns), "two columns have the same name")
    return columns


def _components(metadata: Any) -> Components | None:
    names, shards = tuple(metadata.component_names), tuple(metadata.component_shards)
    check(len(names) == len(set(names)) == len(shards), "the components are not each named once")
    # A row's shard travels as int32, so that no larger number can name one.
    rise = list(shards) == sorted(shards) and shards[-1:] < (1 << 31,)
    check(not names or (shards[0] == 0 and rise), "the components' shards do not rise from 0")
    return Components(names, shards) if names else None


def _decode_column(proto: Any, rows: int, reader: PayloadReader) -> Column:
    kind = proto.WhichOneof("kind")
    if kind == "ragged":
        return _decode_ragged(proto.ragged, rows, reader)
    if kind == "sparse":
        return _decode_sparse(proto.sparse, rows, reader)
    check(kind == "values", "the column {!r} has no kind", proto.name)
    return _decode_values(proto.values, rows, reader)


def _decode_ragged(proto: Any, rows: int, reader: PayloadReader, depth: int = 1) -> Ragged:
    check(depth < MOST_DIMENSIONS, "rows within rows, {} deep", depth)
    splits = reader.array("int64", (rows + 1,))
    inner = int(splits[-1])
    # Before anything is made of this size: the number comes from outside.
    check(0 <= inner < 1 << 62, "an array has {} rows", inner)
    if proto.values.WhichOneof("kind") == "ragged":
        values: Values = _decode_ragged(proto.values.ragged, inner, reader, depth + 1)
    else:
        values = _decode_values(proto.values, inner, reader)
    _check_offsets(splits, inner)
    return Ragged(values, splits)


def _decode_sparse(proto: Any, rows: int, reader: PayloadReader) -> Sparse:
    shape = tuple(int(side) for side in proto.dense_shape)
    check(shape[:1] == (rows,) and len(shape) <= MOST_DIMENSIONS, "a sparse shape of {}", shape)
    check(max(shape) < 1 << 62, "a sparse shape of {}", shape)
    count = int(proto.count)
    indices = reader.array("int64", (count, len(shape)))
    inside = (indices >= 0) & (indices < np.array(shape, np.int64))
    check(bool(inside.all()), "a sparse index is outside of its shape")
    values = _decode_values(proto.values, count, reader)
    if isinstance(values, Arrays):
        raise RemoteProtocolError("a batch does not fit its description: sparse arrays")
    return Sparse(indices, values, shape)


def _decode_values(
    proto: Any, rows: int, reader: PayloadReader
) -> npt.NDArray[Any] | Arrays | BytesColumn:
    """Read an array, or a column of strings or arrays, of so many rows."""
    kind = proto.WhichOneof("kind")
    if kind == "bytes":
        return _decode_bytes(proto.bytes, rows, reader)
    if kind == "arrays":
        return _decode_arrays(proto.arrays, rows, reader)
    check(kind == "array", "values have no kind")
    shape = tuple(int(side) for side in proto.array.shape)
    check(shape[:1] == (rows,), "an array of shape {}, {} rows", shape, rows)
    return reader.array(proto.array.dtype, shape)


def _decode_bytes(proto: Any, rows: int, reader: PayloadReader) -> BytesColumn:
    item_shape = tuple(int(side) for side in proto.item_shape)
    check(len(item_shape) < MOST_DIMENSIONS, "strings of {} dimensions a row", len(item_shape))
    count, per_row = int(proto.count), math.prod(item_shape)
    check(max(item_shape, default=0) < 1 << 62, "strings of the shape {} a row", item_shape)
    check(count == rows * per_row, "{} strings for {} rows", count, rows)
    offsets = reader.array("int64", (count + 1,))
    values = reader.array("uint8", (int(proto.size),))
    _check_offsets(offsets, len(values))
    return BytesColumn(values, offsets, item_shape, rows)


def _decode_arrays(proto: Any, rows: int, reader: PayloadReader) -> Arrays:
    count, size, dimensions = int(proto.count), int(proto.size), int(proto.dimensions)
    check(count == rows, "{} arrays for {} rows", count, rows)
    check(dimensions <= MOST_DIMENSIONS, "arrays of {} dimensions", dimensions)
    shapes = reader.array("int64", (count, dimensions))
    values = reader.array(proto.dtype, (size,))
    sizes = volumes(shapes, 1 << 58)
    fits = (sizes >= 0) & (sizes <= size)  # so that the sum of the sizes fits int64
    check(bool(fits.all()), "an array has a shape that its values cannot have")
    offsets = offsets_of(sizes)
    check(int(offsets[-1]) == size, "{} values for arrays of {}", size, offsets[-1])
    return Arrays(values, offsets, shapes)


def _check_offsets(offsets: npt.NDArray[np.int64], end: int) -> None:
    valid = offsets[0] == 0 and offsets[-1] == end and bool((offsets[:-1] <= offsets[1:]).all())
    check(bool(valid), "offsets do not rise from 0 to the end of the values")
