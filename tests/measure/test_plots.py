from __future__ import annotations

from streamrec.measure.figures import Cell, Sample, Sweep
from streamrec.measure.plots import MOST, grid_of, lines_of
from tests.measure.samples import figures


def cell(size: int, many: int, rate: int, **others: int) -> Cell:
    return Cell(range_bytes=size, concurrency=many, seconds=2, bytes=2 * rate, requests=9, **others)


def test_cells_stand_where_their_size_and_number_are() -> None:
    cells = [cell(1 << 20, 8, 9_000_000), cell(256 << 10, 8, 5_000_000), cell(1 << 20, 16, 10**10)]
    grid = grid_of(Sweep(cells=cells, connection_bytes_per_second=None, plateau=2))
    assert grid.columns == ["8", "16"]
    ((small, (one, none)), (large, (two, three))) = grid.rows
    assert (small, large) == ("256 KiB", "1 MiB")
    assert none is None
    assert one
    assert two
    assert three
    assert (one.text, two.text, three.text) == ("5.0", "9.0", "10,000")
    assert (one.shade, two.shade, three.shade) == ("h0", "h0", "h8")
    assert [square.is_plateau for square in (one, two, three)] == [False, False, True]
    assert one.detail.startswith("8 requests of 256 KiB at a time, 5.0 MB/s, 9 requests in 2.0 s")


def test_throttling_is_named() -> None:
    sweep = Sweep(cells=[cell(1, 1, 0, throttled=3)], connection_bytes_per_second=1, plateau=None)
    ((_, (square,)),) = grid_of(sweep).rows
    assert square
    assert square.detail.endswith(", 3 told to slow down")
    assert (square.text, square.shade) == ("0.0", "h0")


def test_an_empty_sweep_is_an_empty_table() -> None:
    assert grid_of(Sweep(cells=[], connection_bytes_per_second=None, plateau=None)).rows == []


def test_a_job_has_a_line_for_bytes_records_and_requests() -> None:
    job = figures().job
    assert job
    lines = lines_of(job)
    assert [line.title for line in lines] == ["Bytes", "Records", "Requests under way"]
    assert [line.summary for line in lines] == ["467.4 MB/s", "4,237 records/s", "15 requests"]
    assert all(len(line.values) == len(job.samples) for line in lines)
    assert lines[0].texts[3].endswith("/s, until 1.0 s")
    assert lines[0].end == "20.0 s"


def test_many_samples_are_put_together_and_a_gap_stays_one() -> None:
    job = figures().job
    assert job
    samples = [
        Sample(at=i / 100, seconds=0.01, bytes=10_000, records=0)
        for i in range(1, 2001)
        if not 500 < i <= 1000
    ]
    line, _ = lines_of(job.model_copy(update={"samples": samples}))
    assert len(line.values) == MOST
    gap = line.values[MOST // 4 : MOST // 2]
    assert set(gap) == {None}
    assert {round(value) for value in line.values if value is not None} == {1_000_000}
    assert line.texts[MOST // 4].startswith("nothing, until ")


def test_without_samples_there_is_no_line() -> None:
    job = figures().job
    assert job
    assert lines_of(job.model_copy(update={"samples": []})) == []
