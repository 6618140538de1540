"""Faults that fuzzing and measuring found, one test each, of every implementation of the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from streamrec.values.record_rows import RecordRows
from tests.kernel.wire_bytes import (
    bytes_list,
    entry,
    example,
    feature_lists,
    float_list,
    int64_list,
    steps,
)


@pytest.fixture
def _cut_off_once_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows become empty before they are filled, as if by another thread."""
    extension = pytest.importorskip("streamrec.kernel._native")
    original = extension.fill

    def fill(schema: Any, held: Any, memory: Any) -> Any:
        held[3][:] = 0
        return original(schema, held, memory)

    monkeypatch.setattr(extension, "fill", fill)


@pytest.mark.usefixtures("_cut_off_once_measured")
class TestRowsThatChangeWhileTheyAreParsed:
    """Values were looked for where a row had had them, though it now ended before."""

    def refuse(self, parser: Any, record: bytes) -> None:
        with pytest.raises(RuntimeError, match="changed during the parse"):
            parser.parse(RecordRows.of([record]))

    @pytest.mark.parametrize("dtype", DataType)
    def test_features(self, dtype: DataType) -> None:
        from streamrec.kernel import native

        values = {
            DataType.INT64: int64_list(*range(100)),
            DataType.FLOAT32: float_list(0.5),
            DataType.BYTES: bytes_list(b"abc", b""),
        }
        parser = native.Parser([ColumnPlan("a", ColumnKind.VARLEN, dtype)])
        self.refuse(parser, example(entry("a", values[dtype])))

    def test_feature_lists(self) -> None:
        from streamrec.kernel import native

        parser = native.Parser([], [ColumnPlan("a", ColumnKind.STEPS, DataType.INT64)])
        self.refuse(parser, feature_lists(entry("a", steps(int64_list(5), int64_list()))))


class TestNamesThatAreAlikeAtBothEnds:
    """All had one place in the table of names: a thousand took as long as a million others."""

    def test_each_gives_its_own_column(self, kernel: Any) -> None:
        names = [f"features/{number:04}/embedding" for number in range(1000)]
        order = np.random.RandomState(3).permutation(len(names)).tolist()
        rows = RecordRows.of([example(*(entry(names[k], int64_list(k)) for k in order))])
        plans = [ColumnPlan(name, ColumnKind.FIXED, DataType.INT64) for name in names]
        columns = kernel.Parser(plans).parse(rows)
        assert [column.tolist() for column in columns] == [[k] for k in range(1000)]

    def test_those_that_differ_only_between_are_told_apart(self, kernel: Any) -> None:
        for size in range(17, 42):
            for place in range(8, size - 8):
                name = "x" * size
                other = name[:place] + "y" + name[place + 1 :]
                rows = RecordRows.of([example(entry(other, int64_list(1)))])
                plans = [
                    ColumnPlan(text, ColumnKind.VARLEN, DataType.INT64) for text in (name, other)
                ]
                columns = kernel.Parser(plans).parse(rows)
                assert [column.to_list() for column in columns] == [[[]], [[1]]]
