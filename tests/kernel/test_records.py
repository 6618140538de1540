from __future__ import annotations

from itertools import pairwise
from sys import getrefcount
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples.coerce import FIRST, SECOND, frame_bytes, varint
from streamrec.kernel import reference
from streamrec.kernel.contract import FieldColumn
from streamrec.kernel.messages import MESSAGES
from streamrec.values.record_rows import RecordRows
from tests.kernel.conftest import IMPLEMENTATIONS

if TYPE_CHECKING:
    from streamrec.values.columns import BytesColumn

pytestmark = pytest.mark.both_kernels

KERNELS = st.sampled_from(IMPLEMENTATIONS)
INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [(1 << bits) + more for bits in range(0, 63, 7) for more in (-1, 0)]
SPLITS_FALL = "the splits of row 1 do not rise within the values"
CHANGED = "the values.* were changed while they were encoded; encode a copy"


def column(values: Any, splits: Any = None, **more: Any) -> FieldColumn:
    """Describe integers, floats or bytes, behind one head."""
    values = np.asarray(values)
    splits = np.arange(len(values) + 1) if splits is None else np.asarray(splits, np.int64)
    return FieldColumn(more.pop("heads", (FIRST,)), values, splits, **more)


def encoded(kernel: Any, *fields: FieldColumn, head: bytes = b"") -> list[bytes]:
    messages: list[bytes] = kernel.MessageEncoder(fields, head).encode().to_list()
    return messages


def joined(blocks: list[BytesColumn]) -> list[bytes]:
    return [octets for block in blocks for octets in block.to_list()]


@st.composite
def field_columns(draw: st.DrawFn, rows: int) -> FieldColumn:
    """Draw a column of any kind."""
    heads = tuple(draw(st.lists(st.binary(max_size=3), max_size=4)))
    missing = draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows))
    absent = None if missing is None else np.array(missing, np.bool_)
    omits_last = bool(heads) and draw(st.booleans())
    kind = draw(st.sampled_from([np.int64, np.float32, np.uint8, None]))
    if kind is None:
        texts = draw(st.lists(st.binary(max_size=200), min_size=rows, max_size=rows))
        return FieldColumn(heads, tuple(texts), None, omits_last, absent)
    numbers = draw(st.lists(INT64 | st.sampled_from(EDGES), max_size=40))
    values = np.array(numbers, np.int64).astype(kind)
    places = st.lists(st.integers(0, len(values)), min_size=rows + 1, max_size=rows + 1)
    splits = np.array(sorted(draw(places)), np.int64)
    return FieldColumn(heads, values, splits, omits_last, absent)


@st.composite
def messages(draw: st.DrawFn) -> tuple[list[FieldColumn], bytes]:
    rows = draw(st.integers(0, 12))
    fields = draw(st.lists(field_columns(rows), min_size=1, max_size=4))
    return fields, draw(st.sampled_from([b"", FIRST, b"two"]))


def values_of(field: FieldColumn, row: int) -> bytes:
    """Return the bytes of a row's values, written plainly."""
    if field.splits is None:
        return bytes(field.values[row])
    assert isinstance(field.values, np.ndarray)
    values = field.values[field.splits[row] : field.splits[row + 1]]
    if values.dtype != np.int64:
        return values.tobytes()
    return b"".join(varint(value % 2**64) for value in values.tolist())


def message_of(fields: list[FieldColumn], head: bytes, row: int) -> bytes:
    """Return a row's message, written plainly."""
    message = b""
    for field in fields:
        if field.missing is not None and field.missing[row]:
            continue
        values = values_of(field, row)
        heads = field.heads[:-1] if field.omits_last and not values else field.heads
        for outer in reversed(heads):
            values = outer + frame_bytes(values)
        message += values
    return head + frame_bytes(message) if head else message


class TestMessages:
    @given(kernel=KERNELS, message=messages())
    def test_any_columns(self, kernel: Any, message: tuple[list[FieldColumn], bytes]) -> None:
        fields, head = message
        expected = [message_of(fields, head, row) for row in range(fields[0].rows)]
        encoder = kernel.MessageEncoder(fields, head)
        assert encoder.encode().to_list() == expected
        lengths = np.diff(encoder.offsets()).tolist()
        assert lengths == [len(octets) for octets in expected]
        assert max(lengths, default=0) <= encoder.most

    @pytest.mark.parametrize("kernel", IMPLEMENTATIONS)
    @pytest.mark.parametrize("value", [2**63 - 1, -1, np.float32(1.5)])
    def test_the_most_bytes_of_a_row_with_all_values(self, kernel: Any, value: Any) -> None:
        encoder = kernel.MessageEncoder([column([value] * 50, [0, 50])])
        (octets,) = encoder.encode().to_list()
        assert len(octets) <= encoder.most

    @given(kernel=KERNELS, message=messages(), size=st.integers(0, 600), is_framed=st.booleans())
    def test_blocks(
        self, kernel: Any, message: tuple[list[FieldColumn], bytes], size: int, is_framed: bool
    ) -> None:
        encoder = kernel.MessageEncoder(*message)
        blocks = list(encoder.blocks(size, framed=is_framed))
        whole = encoder.encode().to_list()
        if is_framed:
            whole = [reference.frame_records(RecordRows.of([one])).tobytes() for one in whole]
        assert joined(blocks) == whole
        assert all(len(block) == 1 or len(block.values) <= size for block in blocks)
        for block, after in pairwise(blocks):
            assert len(block.values) + len(after.to_list()[0]) > size

    def test_a_message_larger_than_a_block_is_one_alone(self, kernel: Any) -> None:
        field = FieldColumn((), (b"long", b"", b"x"), None)
        blocks = kernel.MessageEncoder([field]).blocks(1)
        assert [block.to_list() for block in blocks] == [[b"long"], [b"", b"x"]]

    @pytest.mark.parametrize(
        ("value", "octets"),
        [
            (0, b"\0"),
            (127, b"\x7f"),
            (128, b"\x80\1"),
            (300, b"\xac\2"),
            (2**35, bytes([128] * 5) + b"\1"),
            (-1, bytes([255] * 9) + b"\1"),
        ],
    )
    def test_known_integers(self, kernel: Any, value: int, octets: bytes) -> None:
        assert encoded(kernel, column([value], heads=())) == [octets]

    @given(
        kernel=KERNELS, values=st.lists(INT64 | st.sampled_from(EDGES), max_size=40), data=st.data()
    )
    def test_protobuf_reads_the_integers(
        self, kernel: Any, values: list[int], data: st.DataObject
    ) -> None:
        places = st.lists(st.integers(0, len(values)), min_size=1, max_size=8)
        splits = sorted(data.draw(places))
        rows = encoded(kernel, column(np.array(values, np.int64), splits, omits_last=True))
        read = [list(MESSAGES["Int64List"].FromString(row).value) for row in rows]
        assert read == [values[first:last] for first, last in pairwise(splits)]

    @given(kernel=KERNELS, texts=st.lists(st.text(max_size=9).map(str.encode), max_size=5))
    def test_protobuf_reads_an_example(self, kernel: Any, texts: list[bytes]) -> None:
        key = FIRST + frame_bytes(b"name")
        field = FieldColumn((FIRST, key + SECOND, FIRST, FIRST), tuple(texts), None)
        for row, text in zip(encoded(kernel, field, head=FIRST), texts, strict=True):
            example = MESSAGES["Example"].FromString(row)
            assert list(example.features.feature["name"].bytes_list.value) == [text]

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
    def test_parts_are_joined(
        self, kernel: Any, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.kernel.reference.records._PART", 3)
        values = [1, 300, -1, 2**40, 0, 128, 5][:count]
        expected = [varint(value % 2**64) for value in values]
        assert encoded(kernel, column(np.array(values, np.int64), heads=())) == expected

    @pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8])
    def test_values_that_are_not_contiguous(self, kernel: Any, dtype: Any) -> None:
        every = np.arange(6).astype(dtype)
        assert encoded(kernel, column(every))[::2] == encoded(kernel, column(every[::2]))

    def test_more_rows_than_a_block_has_offsets_for(self, kernel: Any) -> None:
        field = column(np.zeros(2**14 + 1, np.int64), heads=())
        blocks = list(kernel.MessageEncoder([field]).blocks(2**20))
        assert joined(blocks) == [b"\0"] * (2**14 + 1)

    def test_a_message_larger_than_a_block(self, kernel: Any) -> None:
        texts = (b"a", b"b" * 1000, b"c", b"d")
        blocks = kernel.MessageEncoder([FieldColumn((), texts, None)]).blocks(10)
        assert [block.to_list() for block in blocks] == [[b"a"], [b"b" * 1000], [b"c", b"d"]]


class TestRefusals:
    @pytest.mark.parametrize(
        "splits", [[0, 1, 0], [0, 1, 4], [0, 3, 1], [0, 0, -1], [0, 1, 2**62], [1, 1, -(2**63)]]
    )
    @pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8])
    def test_splits_that_do_not_rise_within_the_values(
        self, kernel: Any, splits: list[int], dtype: Any
    ) -> None:
        encoder = kernel.MessageEncoder([column(np.arange(3).astype(dtype), splits)])
        with pytest.raises(ValueError, match=SPLITS_FALL):
            encoder.offsets()
        with pytest.raises(ValueError, match=SPLITS_FALL):
            encoder.encode()
        with pytest.raises(ValueError, match=SPLITS_FALL):
            list(encoder.blocks(100))

    def test_columns_of_different_length(self, kernel: Any) -> None:
        with pytest.raises(ValueError, match=r"."):
            encoded(kernel, column([1, 2]), column([1]))


def test_a_generator_that_is_left_frees_the_columns(kernel: Any) -> None:
    values = np.zeros(1000, np.int64)
    before = getrefcount(values)
    blocks = kernel.MessageEncoder([column(values)]).blocks(100)
    next(blocks)
    assert getrefcount(values) > before
    blocks.close()
    del blocks
    assert getrefcount(values) == before


native: Any = next((one for one in IMPLEMENTATIONS if one is not reference), None)


@pytest.mark.skipif(native is None, reason="the extension is not built")
class TestChanges:
    """Values that change while the extension encodes them never lead it out of its memory."""

    @pytest.mark.parametrize("value", [2**20, -1])
    def test_longer_integers_after_measuring(
        self, value: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        values = np.zeros(50, np.int64)
        guarded = np.full(300, 0xEE, np.uint8)

        def memory(shape: tuple[int, ...], _dtype: Any) -> Any:
            values[20:] = value
            return guarded[100 : 100 + shape[0]]

        monkeypatch.setattr("streamrec.kernel.native.records.empty", memory)
        with pytest.raises(ValueError, match=CHANGED):
            encoded(native, column(values, [0, 10, 50]))
        assert set(guarded[:100]) == set(guarded[154:]) == {0xEE}

    def test_fewer_bytes_after_measuring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.full(50, -1, np.int64)

        def memory(shape: tuple[int, ...], dtype: Any) -> Any:
            values[:] = 0
            return np.empty(shape, dtype)

        monkeypatch.setattr("streamrec.kernel.native.records.empty", memory)
        with pytest.raises(ValueError, match=CHANGED):
            encoded(native, column(values))

    def test_between_blocks(self) -> None:
        splits = np.arange(101)
        blocks = native.MessageEncoder([column(np.zeros(100, np.int64), splits)]).blocks(60)
        assert len(next(blocks)) == 20
        splits[50] = 2**40
        assert len(next(blocks)) == 20
        with pytest.raises(ValueError, match="the splits of row 49 do not rise"):
            next(blocks)


@given(kernel=KERNELS, message=messages())
def test_an_encoder_serves_threads(kernel: Any, message: tuple[list[FieldColumn], bytes]) -> None:
    encoder = kernel.MessageEncoder(*message)
    found: list[list[bytes]] = []
    threads = [Thread(target=lambda: found.append(encoder.encode().to_list())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [encoder.encode().to_list()] * 2


@pytest.mark.skipif(native is None, reason="the extension is not built")
class TestExtension:
    """The extension's own checks of what it is given."""

    @pytest.mark.parametrize(
        "described",
        [
            (0, (b"",) * 5, False, np.zeros(2, np.int64), np.arange(3), None),
            (0, (), True, np.zeros(2, np.int64), np.arange(3), None),
            (0, (), False, np.zeros(2, np.int64), np.arange(4), None),
            (3, (), False, np.zeros(6, np.uint8), np.arange(3), None),
            (8, (), False, np.zeros(5, np.uint8), np.arange(3), None),
            (-1, (), False, (b"",), None, None),
            (-1, (), False, [b"", b""], None, None),
            (1, (), False, np.zeros(2, np.uint8), np.arange(3), np.zeros(3, np.bool_)),
        ],
    )
    def test_columns_that_are_refused(self, described: tuple[Any, ...]) -> None:
        with pytest.raises(ValueError, match=r"."):
            native.records._native.message(2, b"", (described,))

    @pytest.mark.parametrize(
        ("first", "offsets"), [(-1, 1), (3, 1), (0, 0), (0, 4), (2, 2), (2**63 - 1, 2)]
    )
    def test_rows_that_are_not_the_message_s(self, first: int, offsets: int) -> None:
        message, _ = native.records._native.message(2, b"", ())
        with pytest.raises(ValueError, match="the offsets are not those of rows"):
            native.records._native.join(message, first, np.empty(offsets, np.int64), None, False)

    def test_another_capsule(self) -> None:
        from datetime import datetime_CAPI

        with pytest.raises(ValueError, match="PyCapsule"):
            native.records._native.join(datetime_CAPI, 0, np.empty(1, np.int64), None, False)
