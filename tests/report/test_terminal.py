from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamrec.feeder.page.samples import MOST
from streamrec.report.terminal import BLOCKS, sparkline, table_of


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=MOST), st.integers(1, MOST))
def test_a_line_ends_with_the_newest_value(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == width
    assert set(line) <= {" ", *BLOCKS}
    for block, value in zip(reversed(line), reversed(values), strict=False):
        assert (block == " ") == (value is None)


def test_a_line_is_scaled_to_its_highest_value() -> None:
    assert sparkline([1e-9, 4.0, None, 8.0], 4) == "▁▅ █"
    assert sparkline([0.0, 0.0], 3) == " ▁▁"


def test_a_table_has_a_head_and_no_frame() -> None:
    table = table_of(("name", "left"), ("rate", "right"))
    table.add_row("train", "1 MB/s")
    console = Console(file=io.StringIO(), width=40)
    with console.capture() as capture:
        console.print(table)
    assert capture.get().splitlines() == ["name      rate", "─" * 14, "train   1 MB/s"]
