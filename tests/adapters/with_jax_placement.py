"""Tests of the placing of columns with the real JAX, on several devices; test_jax.py runs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding

from streamrec.adapters.jax import SMALL, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PartitionSpec: Any = import_module("jax.sharding").PartitionSpec
SHARDINGS = ["one device", "a mesh of one device", "a mesh of all devices"]


@pytest.fixture(params=SHARDINGS)
def placement(request: pytest.FixtureRequest) -> Placement:
    devices = jax.devices()
    if request.param == SHARDINGS[0]:
        return Placement(SingleDeviceSharding(devices[-1]), 1)
    size = 1 if request.param == SHARDINGS[1] else len(devices)
    mesh = jax.make_mesh((size,), ("data",), devices=devices[:size])
    return Placement(NamedSharding(mesh, PartitionSpec("data")), 1)


@pytest.fixture
def on_one() -> Placement:
    return Placement(SingleDeviceSharding(jax.devices()[0]), 1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, on_one: Placement) -> list[int]:
    """The numbers of columns that went through the compiled function, a call each."""
    calls: list[int] = []
    copied: Any = on_one._copied

    def copy(columns: list[Any]) -> Any:
        calls.append(len(columns))
        return copied(columns)

    monkeypatch.setattr(on_one, "_copied", copy)
    return calls


def aligned(nbytes: int, first: int = 0) -> np.ndarray[Any, Any]:
    memory = np.zeros(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start] = first
    return memory[start : start + nbytes]


def batch(rows: int, first: int) -> list[np.ndarray[Any, Any]]:
    """Return columns of each size and of several dtypes, in turns."""
    wide = np.full((rows, SMALL), first, np.uint8)
    return [
        np.arange(first, first + rows, dtype=np.int32),
        wide,
        np.full((rows, 2, 3), first, np.float16),
        wide[::-1],
        np.arange(rows) % 2 == 0,
        np.zeros((rows, 0), np.float32),
    ]


def batches() -> Iterator[list[np.ndarray[Any, Any]]]:
    """Yield batches of one shape, with one of another shape among them and in the end."""
    for number, rows in enumerate((8, 8, 8, 16, 8, 8, 16)):
        yield batch(rows, number)


def check(placed: Sequence[Any], columns: Sequence[np.ndarray[Any, Any]]) -> None:
    assert len(placed) == len(columns)
    for array, column in zip(placed, columns, strict=True):
        assert (array.shape, array.dtype) == (column.shape, column.dtype)
        np.testing.assert_array_equal(array, column)


def test_values_and_places_are_those_asked_for(placement: Placement) -> None:
    for columns in batches():
        placed = placement.place(columns)
        check(placed, columns)
        for array in placed:
            assert array.sharding == placement._sharding
            assert array.committed


def test_earlier_arrays_keep_their_values(placement: Placement) -> None:
    every = list(batches())
    for placed, columns in zip([placement.place(one) for one in every], every, strict=True):
        check(placed, columns)


def test_no_columns(placement: Placement) -> None:
    assert [placement.place([]), placement.place([])] == [[], []]


def test_a_global_shape_has_the_rows_of_all_ranks() -> None:
    column = np.zeros((4, 2), np.int32)
    assert Placement(SingleDeviceSharding(jax.devices()[0]), 3).shape(column) == (12, 2)


def test_large_columns_keep_their_memory(on_one: Placement) -> None:
    column = aligned(SMALL + 1)
    for _ in range(3):
        (placed,) = on_one.place([column])
        assert placed.unsafe_buffer_pointer() == column.ctypes.data


def test_small_ones_are_copied_once_their_shapes_came_twice(
    on_one: Placement, compiled: list[int]
) -> None:
    for columns in batches():
        on_one.place(columns)
    rows_8_twice = 2 + 1
    small = len([column for column in batch(8, 0) if column.nbytes <= SMALL])
    assert compiled == [small] * rows_8_twice


def test_nothing_is_compiled_where_that_is_off(on_one: Placement, compiled: list[int]) -> None:
    with jax.disable_jit():
        for columns in (batch(8, 0), batch(8, 1)):
            placed = on_one.place(columns)
            check(placed, columns)
            assert all(isinstance(array, jax.Array) for array in placed)
    assert compiled == []


def test_a_guard_against_transfers_by_mistake(placement: Placement) -> None:
    with jax.transfer_guard_host_to_device("disallow"):
        for columns in (batch(8, 0), batch(8, 1), batch(8, 2)):
            check(placement.place(columns), columns)
