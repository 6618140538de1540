from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.pipeline.batch import payload, payload_reader
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Components, Origin
from streamrec.plan.state.position import Position
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, offsets_of
from streamrec.wire.messages import BatchMessage
from tests.feeder import fake_dataset
from tests.feeder.fake_dataset import decoded, received
from tests.plan.state.test_position import positions

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.values.columns import Column

DTYPES = st.sampled_from(sorted(payload_reader.DTYPES)).map(np.dtype)
BEHIND_POSITION = 64 + 64 + -(-8 * 9 * fake_dataset.LANES // 64) * 64
"""End of the position of two rows: their shards and their records come before it, each from a
multiple of 64; it has the lanes' eight rows and one of sizes."""
SHAPES = npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)


def of_columns(columns: dict[str, Column], rows: int, mask: Any = None) -> Batch:
    origin = Origin(np.arange(rows, dtype=np.int32), np.arange(rows, dtype=np.int64))
    return Batch(columns, rows, 3, origin, fake_dataset.position(5), mask)


@st.composite
def bytes_columns(draw: st.DrawFn, rows: int) -> BytesColumn:
    shape = draw(st.sampled_from([(), (2,), (2, 1), *([] if rows else [(0,)])]))
    count = rows * int(np.prod(shape, dtype=int))
    return BytesColumn.of(draw(st.lists(st.binary(), min_size=count, max_size=count)), shape)


@st.composite
def arrays(draw: st.DrawFn, rows: int) -> Arrays:
    dimensions = draw(st.integers(1, 3))
    shapes = draw(npst.arrays(np.int64, (rows, dimensions), elements=st.integers(0, 3)))
    offsets = offsets_of(shapes.prod(axis=1))
    return Arrays(draw(npst.arrays(draw(DTYPES), int(offsets[-1]))), offsets, shapes)


@st.composite
def columns(draw: st.DrawFn, rows: int) -> Column:
    kind = draw(st.sampled_from(["array", "arrays", "bytes", "ragged", "nested", "sparse"]))
    if kind == "array":
        return draw(npst.arrays(draw(DTYPES), (rows, *draw(SHAPES))))
    if kind == "bytes":
        return draw(bytes_columns(rows))
    if kind == "arrays":
        return draw(arrays(rows))
    lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    total = sum(lengths)
    values = draw(st.one_of(npst.arrays(np.float32, total), bytes_columns(total)))
    if kind == "nested":
        splits = np.cumsum([0, *lengths], dtype=np.int64)
        inner = draw(columns(total).filter(lambda column: not isinstance(column, Sparse)))
        return Ragged(inner, splits)  # type: ignore[arg-type]
    if kind == "ragged":
        return Ragged(values, np.cumsum([0, *lengths], dtype=np.int64))
    row_numbers = np.repeat(np.arange(rows), lengths)
    places = np.concatenate([np.zeros(0, int), *map(np.arange, lengths)])
    return Sparse(np.stack([row_numbers, places], 1).astype(np.int64), values, (rows, 3))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.integers(0, 4))
    names = draw(st.lists(st.text(max_size=5), unique=True, max_size=4))
    mask = draw(st.one_of(st.none(), npst.arrays(np.bool_, rows)))
    return of_columns({name: draw(columns(rows)) for name in names}, rows, mask)


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, BytesColumn):
        assert (len(a), a.item_shape, a.to_list()) == (len(b), b.item_shape, b.to_list())
    elif isinstance(a, Arrays):
        same(a.shapes, b.shapes)
        same(a.offsets, b.offsets)
        same(a.values, b.values)
    elif isinstance(a, Ragged):
        same(a.row_splits, b.row_splits)
        same(a.values, b.values)
    else:
        assert a.dense_shape == b.dense_shape
        same(a.indices, b.indices)
        same(a.values, b.values)


def arrays_of(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, BytesColumn):
        return [value.values, value.offsets]
    if isinstance(value, Arrays):
        return [value.values, value.shapes]
    rest = value.row_splits if isinstance(value, Ragged) else value.indices
    return [rest, *arrays_of(value.values)]


def test_rows_without_strings_are_as_many() -> None:
    column = BytesColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), (0, 2), 3)
    got = decoded(received(payload.encode(of_columns({"a": column}, 3))))
    assert len(got["a"]) == 3
    same(got["a"], column)


@given(batches())
def test_what_is_encoded_is_decoded(batch: Batch) -> None:
    got = decoded(received(payload.encode(batch)))
    assert list(got) == list(batch)
    for name in batch:
        same(got[name], batch[name])
        for array in arrays_of(got[name]):
            assert array.flags.writeable
            assert array.flags.c_contiguous
            assert not array.size or array.ctypes.data % 64 == 0
    assert (got.rows, got.epoch) == (batch.rows, 3)
    assert got.next_position == batch.next_position
    for ours, theirs in zip(got.origin, batch.origin, strict=True):
        same(ours, theirs)
    assert (got.mask is None) == (batch.mask is None)
    if batch.mask is not None:
        same(got.mask, batch.mask)


def test_what_is_remembered_of_a_batch_is_not_taken_for_another() -> None:
    for rows, dtype, name in [(3, "int64", "a"), (2, "int64", "a"), (3, "int32", "a")] * 2:
        batch = of_columns({name: np.arange(2 * rows, dtype=dtype).reshape(rows, 2)}, rows)
        again = decoded(received(payload.encode(batch)))
        assert again.columns[name].dtype == dtype
        np.testing.assert_array_equal(again.columns[name], batch.columns[name])


def test_columns_of_one_name_are_refused() -> None:
    batch = of_columns({name: np.zeros(3, np.int64) for name in "ab"}, 3)
    message = received(payload.encode(batch))
    changed = BatchMessage(message.metadata.replace(b"\x01b", b"\x01a"), message.payload)
    assert changed != message
    with pytest.raises(RemoteProtocolError, match="two columns have the same name"):
        decoded(changed)


def test_nothing_is_copied() -> None:
    numbers = np.arange(1000.0)
    message = payload.encode(of_columns({"a": numbers}, 1000))
    assert np.shares_memory(np.frombuffer(message.payload[-1], np.uint8), numbers)
    memory = received(message)
    got = decoded(memory)["a"]
    assert isinstance(got, np.ndarray)
    got[0] = 5
    assert np.frombuffer(memory.payload[0], np.uint8).any()
    assert np.shares_memory(got, np.frombuffer(memory.payload[0], np.uint8))


def test_bfloat16_travels_where_it_is_installed() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    columns: Any = {
        "a": np.array([[1.5], [-2.0]], bfloat16),
        "b": Ragged(np.array([0.5], bfloat16), np.array([0, 0, 1])),
    }
    got = decoded(received(payload.encode(of_columns(columns, 2))))
    assert got["a"].dtype == got["b"].values.dtype == bfloat16
    assert got["a"].tolist() == [[1.5], [-2.0]]
    assert got["b"].to_list() == [[], [0.5]]


def test_bfloat16_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    message = changed(setting("columns.1.values.array.dtype", "bfloat16"))
    with pytest.raises(RemoteProtocolError, match="pip install -U ml_dtypes"):
        decoded(message)


def rows_in_rows(depth: int) -> Ragged:
    column = Ragged(np.arange(3), np.array([0, 1, 3]))
    for _ in range(depth):
        column = Ragged(column, np.array([0, 1, 2]))
    return column


def test_rows_in_rows() -> None:
    batch = of_columns({"a": rows_in_rows(5)}, 2)
    same(decoded(received(payload.encode(batch)))["a"], rows_in_rows(5))
    with pytest.raises(RemoteProtocolError, match="rows within rows, 32 deep"):
        decoded(received(payload.encode(of_columns({"a": rows_in_rows(40)}, 2))))


@pytest.mark.parametrize("outer", [[0, 2, 1], [0, 1, 7], [0, 1, -1], [1, 1, 2], [0, 1, 1 << 62]])
def test_outer_splits_that_lead_elsewhere(outer: list[int]) -> None:
    message = received(payload.encode(of_columns({"a": rows_in_rows(1)}, 2)))
    splits = np.frombuffer(message.payload[0], np.int64, 3, offset=BEHIND_POSITION)
    assert splits.tolist() == [0, 1, 2]
    splits[:] = outer
    with pytest.raises(RemoteProtocolError):
        decoded(message)


def test_ragged_values_of_other_columns_are_refused() -> None:
    for path in ("values", "sparse.values"):

        def change(metadata: Any, path: str = path) -> None:
            proto = metadata.columns[1]
            for part in path.split("."):
                proto = getattr(proto, part)
            proto.ragged.SetInParent()

        with pytest.raises(RemoteProtocolError):
            decoded(changed(change))


def test_parts_of_columns_travel_as_wholes() -> None:
    strings = BytesColumn.of([b"a", b"bc", b"def"])
    part = BytesColumn(strings.values, strings.offsets[1:])
    ragged = Ragged(np.arange(10.0), np.array([2, 5, 9]))
    words = Ragged(strings, np.array([1, 2, 3]))
    frames = Ragged(of_shapes([[1, 1, 1], [1, 2, 3], [2, 1, 1]]), np.array([1, 1, 3]))
    turned = np.arange(6, dtype=">i4").reshape(3, 2).T
    batch = of_columns({"part": part, "ragged": ragged, "words": words, "turned": turned}, 2)
    batch.columns["frames"] = frames  # type: ignore[index]
    got = decoded(received(payload.encode(batch)))
    assert got["part"].to_list() == [b"bc", b"def"]
    assert got["ragged"].to_list() == [[2, 3, 4], [5, 6, 7, 8]]
    assert got["words"].to_list() == [[b"bc"], [b"def"]]
    assert [frame.tolist() for frame in got["frames"][1]] == [
        [[[0, 1, 2], [3, 4, 5]]],
        [[[6]], [[7]]],
    ]
    np.testing.assert_array_equal(got["turned"], turned)
    assert got["turned"].dtype == np.int32


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array(5)])
def test_what_cannot_travel(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="cannot travel"):
        payload.encode(of_columns({"a": array}, 1))


@given(batch=batches())
def test_columns_alone(batch: Batch) -> None:
    message = payload.encode_columns(batch.columns, len(batch))
    found = payload.decode_columns(received(message))
    assert list(found) == list(batch.columns)
    for name, column in batch.columns.items():
        same(found[name], column)


def test_columns_alone_that_cannot_travel() -> None:
    with pytest.raises(LocalProtocolError, match="cannot travel"):
        payload.encode_columns({"a": np.array(["a"])}, 1)


def test_columns_alone_that_are_damaged() -> None:
    message = payload.encode_columns({"a": np.arange(3)}, 3)
    with pytest.raises(RemoteProtocolError):
        payload.decode_columns(BatchMessage(message.metadata, ()))
    with pytest.raises(RemoteProtocolError):
        payload.decode_columns(BatchMessage(b"\xff" + message.metadata, message.payload))


# What comes from outside


def changed(change: Callable[[Any], None], batch: Batch | None = None) -> BatchMessage:
    """Return a received batch with changed metadata."""
    message = payload.encode(fake_dataset.batch(0) if batch is None else batch)
    metadata = payload_reader.PROTO["Batch"].FromString(message.metadata)
    change(metadata)
    return received(BatchMessage(metadata.SerializeToString(), message.payload))


def setting(path: str, value: Any) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        *parents, name = path.split(".")
        for part in parents:
            metadata = metadata[int(part)] if part.isdigit() else getattr(metadata, part)
        if name.isdigit():
            metadata[int(name)] = value
        else:
            setattr(metadata, name, value)

    return change


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rows", 7, "array"),
        ("rows", 1 << 63, "is not there"),
        ("mask", True, "bool|belong|is not there"),
        ("position.rows", 0, "position|offsets|belong"),
        ("position.rows", 8, "position|offsets|belong"),
        ("position.rows", 10, "position|offsets|is not there"),
        ("position.rows", 1 << 63, "is not there"),
        ("position.step", 1 << 48, "position of a batch cannot be read: the state's 'step'"),
        ("position.epoch", 1 << 32, "position of a batch cannot be read: the state's 'epoch'"),
        ("position.run_epoch", 1 << 63, "'run_epoch' is not a number"),
        ("position.skip", 1, "'skip' is not a number from 0 to 0"),
        ("columns.0.name", "values", "same name"),
        ("columns.0.values.array.dtype", "object", "dtype"),
        ("columns.0.values.array.dtype", "complex128", "is not there|offsets|belong|bool"),
        ("columns.1.values.array.shape.1", 1 << 62, "is not there"),
        ("columns.1.values.array.shape.0", 9, "rows"),
        ("columns.2.values.bytes.count", 9, "9 strings for 8 rows"),
        ("columns.2.values.bytes.count", 0, "0 strings for 8 rows"),
        ("columns.2.values.bytes.size", 1, "offsets"),
        ("columns.2.values.bytes.size", 1 << 63, "is not there"),
    ],
)
def test_metadata_that_does_not_fit(path: str, value: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decoded(changed(setting(path, value)))


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.columns.add(name="more"),
        lambda metadata: metadata.columns.add(name="more").values.SetInParent(),
        lambda metadata: metadata.columns.pop(),
        lambda metadata: metadata.columns[1].values.array.shape.extend([1] * 40),
        lambda metadata: metadata.columns[1].values.array.shape.extend([0, 1 << 63]),
        lambda metadata: metadata.columns[1].values.array.shape.extend([0, 1 << 61, 1 << 61]),
        lambda metadata: metadata.columns[2].values.bytes.item_shape.append(3),
        lambda metadata: metadata.columns[2].values.bytes.item_shape.append(0),
        lambda metadata: metadata.columns[2].values.bytes.item_shape.extend([1] * 40),
        lambda metadata: metadata.columns[1].sparse.dense_shape.extend([8, 1 << 62]),
        lambda metadata: metadata.columns[1].sparse.dense_shape.extend([]),
        lambda metadata: metadata.columns[1].ragged.SetInParent(),
    ],
)
def test_structures_that_do_not_fit(change: Callable[[Any], None]) -> None:
    with pytest.raises(RemoteProtocolError):
        decoded(changed(change))


@pytest.mark.parametrize(
    "column",
    [
        BytesColumn(np.zeros(4, np.uint8), np.array([0, 3, 2, 4])),
        BytesColumn(np.zeros(4, np.uint8), np.array([0, -1, 2, 4])),
        Ragged(np.zeros(4), np.array([0, 9, 2, 4])),
        Sparse(np.array([[0, 5]]), np.zeros(1), (3, 5)),
        Sparse(np.array([[-1, 0]]), np.zeros(1), (3, 5)),
    ],
)
def test_offsets_and_indices_that_lead_elsewhere(column: Column) -> None:
    message = received(payload.encode(of_columns({"a": column}, 3)))
    with pytest.raises(RemoteProtocolError, match=r"offsets do not rise|outside of its shape"):
        decoded(message)


def of_shapes(shapes: list[list[int]]) -> Arrays:
    """Arrays of numbers; the first has none."""
    sizes = np.array(shapes, np.int64)
    offsets = offsets_of(sizes.prod(axis=1)) - sizes[0].prod()
    return Arrays(np.arange(offsets[-1], dtype=np.uint8), offsets, sizes)


ARRAYS = of_columns(
    {"a": Arrays(np.zeros(9, np.uint8), np.array([0, 6, 9]), np.array([[1, 2, 3], [3, 1, 1]]))}, 2
)


@pytest.mark.parametrize(
    "shapes",
    [
        [[1, 2, 3], [3, 1, 2]],
        [[1, 2, 3], [1, 1, 1]],
        [[1, 2, 3], [-3, -1, 1]],
        [[0, 2, 3], [3, 4, 1]],
        [[1 << 62, 1 << 62, 0], [3, 3, 1]],
        [[1 << 32, 1 << 32, 1], [3, 3, 1]],
        [[1 << 62, 4, 1], [3, 3, 1]],
    ],
)
def test_arrays_that_their_values_do_not_make(shapes: list[list[int]]) -> None:
    message = received(payload.encode(ARRAYS))
    held = np.frombuffer(message.payload[0], np.int64, 6, offset=BEHIND_POSITION)
    assert held.tolist() == [1, 2, 3, 3, 1, 1]
    held[:] = np.array(shapes).ravel()
    with pytest.raises(RemoteProtocolError, match=r"its values cannot have|values for"):
        decoded(message)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("columns.0.values.arrays.count", 3, "3 arrays for 2 rows"),
        ("columns.0.values.arrays.size", 8, "8 values for arrays of 9"),
        ("columns.0.values.arrays.size", 5, "shape that its values cannot have"),
        ("columns.0.values.arrays.size", 1 << 63, "is not there"),
        ("columns.0.values.arrays.dimensions", 2, "9 values for arrays of 11"),
        ("columns.0.values.arrays.dimensions", 33, "arrays of 33 dimensions"),
        ("columns.0.values.arrays.dtype", "int128", "there is no dtype 'int128'"),
    ],
)
def test_arrays_whose_metadata_does_not_fit(path: str, value: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decoded(changed(setting(path, value), ARRAYS))


def test_sparse_arrays_are_refused() -> None:
    def change(metadata: Any) -> None:
        column = metadata.columns[0]
        values = type(column.values).FromString(column.values.SerializeToString())
        column.sparse.values.CopyFrom(values)
        column.sparse.count = 2
        column.sparse.dense_shape.extend([2])

    with pytest.raises(RemoteProtocolError):
        decoded(changed(change, ARRAYS))
    sparse = Sparse(np.array([[0], [1]]), ARRAYS["a"], (2,))
    with pytest.raises(RemoteProtocolError, match="sparse arrays"):
        decoded(received(payload.encode(of_columns({"a": sparse}, 2))))


def test_a_bool_is_0_or_1() -> None:
    lies = np.full(3, 7, np.uint8).view(np.bool_)
    with pytest.raises(RemoteProtocolError, match="neither 0 nor 1"):
        decoded(received(payload.encode(of_columns({"a": lies}, 3))))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_foreign_bytes_are_refused(metadata: bytes, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decoded(received(BatchMessage(metadata, (memoryview(data),))))


@given(st.data())
def test_mutated_metadata_is_refused_or_harmless(data: st.DataObject) -> None:
    message = payload.encode(fake_dataset.batch(0, size=2))
    mutated = bytearray(message.metadata)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decoded(received(BatchMessage(bytes(mutated), message.payload)))
    except RemoteProtocolError:
        return
    for column in batch.values():
        assert column.tolist() if isinstance(column, np.ndarray) else column.to_list()


def by_record(step: int) -> Position:
    fingerprint = replace(fake_dataset.fingerprint(), order="record:0123456789abcdef")
    return Position.start(fingerprint, [], rank=0, world_size=1, epoch=2, step=step)


@given(positions())
def test_positions_travel(position: Position) -> None:
    batch = replace(fake_dataset.batch(0), next_position=position)
    message = received(payload.encode(batch))
    whose = position.fingerprint, position.rank, position.world_size
    got = payload.decode(message, *whose).next_position
    assert got == position
    held = np.frombuffer(message.payload[0], np.uint8)
    assert not any(np.shares_memory(rows, held) for rows in (got.lanes, got.sources, got.sizes))


def test_positions_by_record_travel() -> None:
    batch = replace(fake_dataset.batch(0), next_position=by_record(7))
    message = received(payload.encode(batch))
    got = payload.decode(message, by_record(0).fingerprint, 0, 1).next_position
    assert got == by_record(7)
    assert got.since == (2, 7)


@pytest.mark.parametrize("since", [[], [2], [2, 8], [3, 7], [2, 7, 1], [1 << 63, 7]])
def test_a_position_by_record_that_contradicts_itself(since: list[int]) -> None:
    def change(metadata: Any) -> None:
        metadata.position.since[:] = since

    message = changed(change, replace(fake_dataset.batch(0), next_position=by_record(7)))
    with pytest.raises(RemoteProtocolError, match="position of a batch cannot be read"):
        payload.decode(message, by_record(0).fingerprint, 0, 1)


@pytest.mark.parametrize(
    ("row", "number"), [(0, -1), (1, 1 << 48), (3, 1 << 32), (5, 1), (6, -(1 << 63)), (8, 1 << 48)]
)
def test_a_position_of_other_numbers(row: int, number: int) -> None:
    """The sizes follow the lanes' eight rows; nothing is shuffled, so no window has rows."""
    message = received(payload.encode(of_columns({}, 2)))
    rows = np.frombuffer(message.payload[0], np.int64, 9 * fake_dataset.LANES, offset=128)
    rows[row * fake_dataset.LANES] = number
    with pytest.raises(RemoteProtocolError, match="position of a batch cannot be read"):
        decoded(message)


@pytest.mark.parametrize("world_size", [3, 5, 1 << 40])
def test_a_world_that_does_not_divide_the_lanes(world_size: int) -> None:
    message = received(payload.encode(fake_dataset.batch(0)))
    with pytest.raises(RemoteProtocolError, match=r"position|offsets|is not there|belong"):
        payload.decode(message, fake_dataset.fingerprint(), 0, world_size)


class TestComponents:
    MIX = Components(("code", "web"), (0, 2))

    def message(self, components: Components = MIX) -> BatchMessage:
        batch = of_columns({"x": np.arange(4)}, 4)
        return payload.encode(replace(batch, components=components))

    def test_they_travel(self) -> None:
        batch = decoded(received(self.message()))
        assert batch.components == self.MIX
        assert batch.source.tolist() == ["code", "code", "web", "web"]

    @pytest.mark.parametrize(
        ("names", "shards", "words"),
        [
            (("a", "a"), (0, 2), "not each named once"),
            (("a",), (0, 2), "not each named once"),
            ((), (0,), "not each named once"),
            (("a", "b"), (1, 2), "do not rise from 0"),
            (("a", "b", "c"), (0, 2, 1), "do not rise from 0"),
            (("a", "b"), (0, 1 << 31), "do not rise from 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, names: tuple[str, ...], shards: tuple[int, ...], words: str
    ) -> None:
        with pytest.raises(RemoteProtocolError, match=words):
            decoded(received(self.message(Components(names, shards))))
