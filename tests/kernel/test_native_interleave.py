"""Tests of the glue in C alone, which is given arrays of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_native: Any = pytest.importorskip(
    "streamrec.kernel._native", reason="the kernel in C was not built"
)


class TestInterleave:
    """Two lanes of two rows each; whatever is handed in, nothing is touched outside of it."""

    COLUMNS = (np.int32, np.int64, np.int64, np.int32, np.int64)

    def runs(self, **changes: Any) -> list[Any]:
        """Two runs; ``column0`` to ``column4`` change those of the second."""
        columns = [np.zeros(3, dtype) for dtype in self.COLUMNS]
        second = {f"column{k}": column for k, column in enumerate(columns)}
        span = {"lane": 1, "first": 0, "last": 2, "epoch": 0, "first_buffer": 0}
        return [(0, 1, 3, 7, 0, *columns), tuple((span | second | changes).values())]

    def memory(self, rows: int = 4) -> list[Any]:
        return [np.full(rows, 9, dtype) for dtype in (*self.COLUMNS, np.int64, np.int64)]

    def call(self, runs: list[Any], memory: list[Any], keys: Any = None, lanes: int = 2) -> None:
        keys = np.arange(4) if keys is None else keys
        _native.interleave(lanes, tuple(runs), keys, tuple(memory))

    def test_what_is_written(self) -> None:
        memory = self.memory()
        self.call(self.runs(first_buffer=5), memory)
        assert memory[0].tolist() == [0, 5, 0, 5]
        assert memory[5].tolist() == [7, 0, 7, 0]
        assert memory[6].tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize("number", range(5))
    @pytest.mark.parametrize(
        "column",
        [
            np.zeros(2, np.int64),
            np.zeros(6, np.int32),
            np.zeros(3, np.float64),
            np.zeros(3, np.float32),
            np.zeros(3, np.uint64),
            np.zeros(3, np.uint32),
            np.zeros(6, np.int64)[::2],
            np.zeros(6, np.int32)[::2],
            np.zeros(3, ">i8"),
            np.zeros(3, ">i4"),
            bytes(24),
            bytes(12),
        ],
        ids=lambda column: f"{getattr(column, 'dtype', 'bytes')}-{len(column)}",
    )
    def test_other_columns_are_refused(self, number: int, column: Any) -> None:
        memory = self.memory()
        with pytest.raises(ValueError):
            self.call(self.runs(**{f"column{number}": column}), memory)
        assert all((column == 9).all() for column in memory)

    @pytest.mark.parametrize("number", range(7))
    @pytest.mark.parametrize("rows", [3, 5])
    def test_memory_of_another_size_is_refused(self, number: int, rows: int) -> None:
        memory = self.memory()
        memory[number] = self.memory(rows)[number]
        with pytest.raises(ValueError, match="another number of rows"):
            self.call(self.runs(), memory)

    @pytest.mark.parametrize("number", range(7))
    def test_memory_that_cannot_be_written_is_refused(self, number: int) -> None:
        memory = self.memory()
        memory[number].flags.writeable = False
        with pytest.raises((ValueError, BufferError)):
            self.call(self.runs(), memory)

    @pytest.mark.parametrize("lane", [-1, 2])
    def test_a_lane_that_is_not_there_is_refused(self, lane: int) -> None:
        with pytest.raises(ValueError, match="by lane"):
            self.call(self.runs(lane=lane), self.memory())

    def test_runs_that_are_not_by_lane_are_refused(self) -> None:
        with pytest.raises(ValueError, match="by lane"):
            self.call(self.runs()[::-1], self.memory())

    @pytest.mark.parametrize("lanes", [-1, 2**40])
    def test_lanes_without_number_are_refused(self, lanes: int) -> None:
        with pytest.raises(ValueError, match="lanes"):
            self.call(self.runs(), self.memory(), lanes=lanes)

    @pytest.mark.parametrize(
        "keys", [np.arange(3), np.arange(5), np.arange(4.0), np.arange(8)[::2], np.arange(4) - 1]
    )
    def test_other_keys_are_refused(self, keys: Any) -> None:
        memory = self.memory()
        with pytest.raises(ValueError):
            self.call(self.runs(), memory, keys)
        assert all((column == 9).all() for column in memory)
