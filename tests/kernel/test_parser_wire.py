"""Every implementation of the Parser beside protobuf's own messages, on adversarial bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.internal import api_implementation
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from tests.kernel import wire_bytes as wire
from tests.kernel.conftest import IMPLEMENTATIONS
from tests.kernel.oracle import expected, found
from tests.support import examples

pytestmark = pytest.mark.skipif(
    api_implementation.Type() == "python",
    reason="protobuf in Python, as without a GIL, takes and refuses other bytes than the one in C",
)

KERNELS = st.sampled_from(IMPLEMENTATIONS)
DEFAULTS: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.FLOAT32: st.floats(width=32),
    DataType.BYTES: st.binary(max_size=4),
}
many = settings(max_examples=examples(300))


def dtypes(name: str) -> st.SearchStrategy[DataType]:
    """Mostly what the feature of this name mostly holds."""
    return st.just(wire.NAMES.get(name, DataType.INT64)) | st.sampled_from(DataType)


@st.composite
def plan(draw: st.DrawFn, name: str) -> ColumnPlan:
    kind = draw(
        st.sampled_from([ColumnKind.FIXED, ColumnKind.VARLEN, ColumnKind.VARLEN, ColumnKind.RAW])
    )
    dtype = DataType.BYTES if kind is ColumnKind.RAW else draw(dtypes(name))
    if kind is ColumnKind.VARLEN:
        return ColumnPlan(name, kind, dtype)
    sizes = (
        [1, 1, 2, 3] if dtype is DataType.BYTES and kind is ColumnKind.FIXED else [0, 1, 1, 2, 3]
    )
    shape = tuple(draw(st.lists(st.sampled_from(sizes), max_size=2)))
    count = math.prod(shape)
    if kind is ColumnKind.RAW:
        default = st.binary(min_size=count, max_size=count).map(lambda data: (data,))
    else:
        default = st.tuples(*[DEFAULTS[dtype]] * count)
    return ColumnPlan(name, kind, dtype, shape, draw(st.none() | default | default))


@st.composite
def steps_plan(draw: st.DrawFn, name: str) -> ColumnPlan:
    return ColumnPlan(
        name, ColumnKind.STEPS, draw(dtypes(name)), default=draw(st.sampled_from([None, (), ()]))
    )


@st.composite
def several(draw: st.DrawFn, strategy: Any) -> list[ColumnPlan]:
    names = draw(
        st.lists(st.sampled_from([*wire.NAMES, *"abü", "nowhere"]), unique=True, max_size=3)
    )
    return [draw(strategy(name)) for name in names]


PLANS = several(plan)
STEPS = several(steps_plan)
WILD = st.builds(wire.Wild, st.integers(0, 2**32), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
ROWS = range(8)


def same(kernel: Any, records: list[bytes], plans: Any, lists: Any = None) -> None:
    assert found(kernel, records, plans, lists) == expected(records, plans, lists)


class TestDrawn:
    @many
    @given(kernel=KERNELS, wild=WILD, plans=PLANS)
    def test_examples(self, kernel: Any, wild: wire.Wild, plans: Any) -> None:
        records = [wild.example() for _ in ROWS]
        same(kernel, records, plans)
        for record in records:
            same(kernel, [record], plans)
            same(kernel, [wild.broken(record)], plans)

    @many
    @given(kernel=KERNELS, wild=WILD, plans=PLANS, lists=STEPS)
    def test_sequence_examples(self, kernel: Any, wild: wire.Wild, plans: Any, lists: Any) -> None:
        records = [wild.sequence_example() for _ in ROWS]
        same(kernel, records, plans, lists)
        for record in records:
            same(kernel, [record], plans, lists)
            same(kernel, [wild.broken(record)], plans, lists)

    @given(kernel=KERNELS, junk=st.binary(max_size=60), plans=PLANS, lists=st.none() | STEPS)
    def test_junk(self, kernel: Any, junk: bytes, plans: Any, lists: Any) -> None:
        same(kernel, [junk], plans, lists)

    @given(kernel=KERNELS, depth=st.integers(90, 105), level=st.integers(0, 4))
    def test_deep_groups(self, kernel: Any, depth: int, level: int) -> None:
        inner = wire.tag(9, wire.GROUP) * depth + wire.tag(9, wire.END_GROUP) * depth
        for field in (3, 2, 1, 1)[4 - level :]:
            inner = wire.delimited(field, inner)
        same(kernel, [inner], INTS)


INTS = [ColumnPlan("a", ColumnKind.VARLEN, DataType.INT64)]
FLOATS = [ColumnPlan("a", ColumnKind.VARLEN, DataType.FLOAT32)]
WHOLE = wire.example(
    wire.entry("a", wire.int64_list(1, 300, -1)),
    wire.entry("b", wire.bytes_list(b"ab", b"c")),
    wire.entry("c", wire.float_list(0.5, -2.0)),
    wire.entry("ü", wire.int64_list()),
)
SEQUENCE = WHOLE + wire.feature_lists(
    wire.entry("a", wire.steps(wire.int64_list(1, -1), b"", wire.int64_list())),
    wire.entry("b", wire.steps(wire.bytes_list(b"x"))),
)
EVERY = [
    ColumnPlan("a", ColumnKind.VARLEN, DataType.INT64),
    ColumnPlan("b", ColumnKind.FIXED, DataType.BYTES, (2,), (b"", b"-")),
    ColumnPlan("c", ColumnKind.FIXED, DataType.FLOAT32, (2,), (0.0, 1.0)),
]
EVERY_LIST = [
    ColumnPlan("a", ColumnKind.STEPS, DataType.INT64, default=()),
    ColumnPlan("b", ColumnKind.STEPS, DataType.BYTES),
]


class TestBroken:
    def test_every_cut(self, kernel: Any) -> None:
        for length in range(len(WHOLE) + 1):
            same(kernel, [WHOLE, WHOLE[:length]], EVERY)
        for length in range(len(SEQUENCE) + 1):
            same(kernel, [SEQUENCE[:length]], EVERY, EVERY_LIST)

    def test_every_flipped_bit(self, kernel: Any) -> None:
        for record, lists in ((WHOLE, None), (SEQUENCE, EVERY_LIST)):
            for bit in range(len(record) * 8):
                broken = bytearray(record)
                broken[bit // 8] ^= 1 << bit % 8
                same(kernel, [bytes(broken)], EVERY, lists)

    def test_every_byte_in_every_place(self, kernel: Any) -> None:
        record = wire.example(wire.entry("a", wire.int64_list(1, -1)))
        for place in range(len(record)):
            for value in range(256):
                broken = record[:place] + bytes([value]) + record[place + 1 :]
                same(kernel, [broken], INTS)

    @given(kernel=KERNELS, cut=st.integers(0, len(SEQUENCE)), tail=st.binary(max_size=4))
    def test_cuts_with_other_tails(self, kernel: Any, cut: int, tail: bytes) -> None:
        same(kernel, [SEQUENCE[:cut] + tail], EVERY, EVERY_LIST)


def one(feature: bytes) -> bytes:
    return wire.example(wire.entry("a", feature))


VARINTS = [
    *[b"\x81" + b"\x80" * k + b"\x00" for k in range(10)],
    *[b"\xff" * 9 + bytes([last]) for last in (0, 1, 2, 0x40, 0x7E, 0x7F, 0x80)],
    b"\xff" * 10 + b"\x01",
    b"\x80",
    b"",
]


class TestByHand:
    """Inputs written by hand, which the drawn tests find only now and then."""

    @pytest.mark.parametrize("value", VARINTS, ids=bytes.hex)
    def test_varints(self, kernel: Any, value: bytes) -> None:
        for record in (
            one(wire.delimited(3, wire.delimited(1, value))),
            one(wire.delimited(3, wire.delimited(1, b"\x05" + value + b"\x06"))),
            one(wire.delimited(3, b"\x08" + value)),
            wire.tag(5, wire.VARINT) + value,
            value + b"\x00",
            b"\x2a" + value + b"a",
            b"\x0a" + value + b"\x28\x01",
        ):
            same(kernel, [record], INTS)

    @pytest.mark.parametrize(
        "size", [1, 2, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    )
    @pytest.mark.parametrize("head", [b"\x0a", b"\x12", b"\x2a"])
    def test_sizes_beyond_the_record(self, kernel: Any, head: bytes, size: int) -> None:
        for wrap in (bytes, one, lambda data: one(wire.delimited(3, data)), wire.example):
            same(kernel, [wrap(head + wire.varint(size) + b"\x00")], INTS)

    @pytest.mark.parametrize(
        "head",
        [
            *[wire.tag(field, kind) for field in (0, 1, 2, 7) for kind in range(8)],
            *[wire.varint(value) for value in (2**32 - 8, 2**32 + 10, 2**35 + 40, 2**64 - 8)],
            *[wire.varint(10, length) for length in range(1, 8)],
        ],
        ids=bytes.hex,
    )
    def test_tags(self, kernel: Any, head: bytes) -> None:
        for tail in (b"", b"\x00", b"\x01a", bytes(8), b"\x80\x80\x01", head[:-1] + b"\x0c"):
            for wrap in (bytes, wire.example, one, lambda data: one(wire.delimited(2, data))):
                same(kernel, [wrap(head + tail)], FLOATS)

    @pytest.mark.parametrize(
        "key",
        [
            *[b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\x80"],
            *[b"\x00", "ü".encode(), "\uffff".encode(), "\U0010ffff".encode(), b"\xef\xbb\xbfa"],
            *[b"eight bytes " + last for last in (b"\xff", "ß".encode(), b"z" * 20 + b"\xc3")],
        ],
    )
    def test_keys_of_any_bytes(self, kernel: Any, key: bytes) -> None:
        value = wire.int64_list(1)
        same(kernel, [wire.example(wire.entry(key, value))], INTS)
        same(kernel, [wire.feature_lists(wire.entry(key, b""))], [], [])
        twice = wire.delimited(1, wire.delimited(1, key) + wire.delimited(1, b"a"))
        same(kernel, [wire.example(twice)], INTS)

    @pytest.mark.parametrize(
        "inside",
        [
            wire.delimited(3, b"x"),
            wire.tag(4, wire.VARINT) + b"\x01",
            wire.tag(1, wire.VARINT) + b"\x01",
            wire.tag(2, wire.FIXED32) + bytes(4),
            wire.tag(9, wire.GROUP) + wire.tag(9, wire.END_GROUP),
        ],
    )
    def test_entries_with_more_than_a_key_and_a_value(self, kernel: Any, inside: bytes) -> None:
        # protobuf's C code takes the whole entry for unknown then: the feature is not there.
        parts = [wire.delimited(1, b"a"), wire.delimited(2, wire.int64_list(1))]
        before = wire.entry("a", wire.int64_list(7))
        for place in range(3):
            odd = wire.delimited(1, b"".join([*parts[:place], inside, *parts[place:]]))
            for record in (wire.example(odd), wire.example(before, odd), wire.example(odd, before)):
                same(kernel, [record], INTS)

    @pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8])
    def test_packed_floats_of_any_size(self, kernel: Any, size: int) -> None:
        same(kernel, [one(wire.delimited(2, wire.delimited(1, bytes(size))))], FLOATS)

    def test_long_lists(self, kernel: Any) -> None:
        numbers = [0, 1, 127, 128, 300, 2**20, 2**63 - 1, -1] * 300
        same(kernel, [one(wire.int64_list(*numbers)), one(wire.int64_list(*numbers[3:]))], INTS)
        same(kernel, [one(wire.float_list(*map(float, range(3000))))], FLOATS)

    def test_many_features(self, kernel: Any) -> None:
        many = [wire.entry(f"f{i}", wire.int64_list(i)) for i in range(3000)]
        plans = [ColumnPlan(f"f{i}", ColumnKind.FIXED, DataType.INT64) for i in range(2999, 0, -7)]
        same(kernel, [wire.example(*many), wire.example(*reversed(many))], plans)
        same(kernel, [wire.example(*many[:2500])], plans)
