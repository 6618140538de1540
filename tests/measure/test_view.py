from __future__ import annotations

from typing import Any

import pytest

from streamrec.measure.figures import Cell, Costs, Limits, Sample, Sweep, Target, Verdict
from streamrec.measure.view import MOST, advice_of, grid_of, lines_of, view_of
from streamrec.report.words import rate
from tests.measure.samples import CONNECTION, bare, figures, processing


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


def verdict(**changes: Any) -> Verdict:
    found = figures().verdict
    assert found
    return found.model_copy(update=changes)


def with_waits(waits: dict[str, float]) -> list[str]:
    job = figures().job
    assert job
    rows = view_of(figures(job=job.model_copy(update={"waits": waits}))).waits
    return [row.name for row in rows if row.is_most]


def test_the_stage_that_holds_the_job_back_is_marked() -> None:
    assert with_waits({"client": 8.0, "body": 2.0, "order": 1.0, "list": 0.0}) == ["body"]
    assert with_waits({"client": 20.0, "body": 0.5}) == []
    assert with_waits({"client": 0.5}) == []
    assert with_waits({}) == []


def test_a_stage_that_nothing_waited_for_has_no_bar() -> None:
    job = figures().job
    assert job
    waits = {"client": 8.0, "body": 2.0, "list": 0.0}
    rows = view_of(figures(job=job.model_copy(update={"waits": waits}))).waits
    assert [row.name for row in rows] == ["body", "client"]


def test_parts_of_waits_add_up() -> None:
    rows = view_of(figures()).waits
    assert sum(row.part for row in rows) == pytest.approx(1)
    assert (rows[0].name, rows[0].text) == ("first_byte", "54%")
    assert (
        rows[0].detail
        == "10.9 s, the first bytes of each read: the latency of the store, or of the disk"
    )
    assert rows[-1].detail.endswith("the trainer")


def test_ceilings_far_away_are_cut() -> None:
    view = view_of(figures())
    assert [row.is_cut for row in view.ceilings] == [False, False, False, True]
    assert [row.is_most for row in view.ceilings] == [True, False, False, False]
    assert all(0 < row.part <= 1 for row in view.ceilings)
    assert [text for text, _ in view.lines] == ["480.0 MB/s now", "predicted 1.1 GB/s"]
    assert [place for _, place in view.lines] == [pytest.approx(0.48 / 2.875), pytest.approx(0.4)]


def test_a_ceiling_at_the_end_is_not_cut() -> None:
    verdict = figures().verdict
    assert verdict
    near = verdict.model_copy(update={"ceilings": verdict.ceilings[:2]})
    ends = [row for row in view_of(figures(verdict=near)).ceilings if row.part == 1]
    assert [row.is_cut for row in ends] == [False]


def test_a_verdict_without_a_change_promises_nothing() -> None:
    advice = advice_of(verdict(bottleneck="trainer", changes=[], paste=""))
    assert advice.headline == "The trainer is the bottleneck, as it should be."
    assert advice.is_good
    assert (advice.then, advice.gain) == ("", "")
    assert advice_of(verdict(bytes_per_second=0.0)).gain == ""


def test_a_busy_machine_is_told_first() -> None:
    assert advice_of(verdict(busy=0.43)).headline == (
        "Other programs had this machine's cores for 43% of the time. "
        "The latency of the store holds this job back."
    )
    cores = advice_of(verdict(busy=0.43, bottleneck="cores")).headline
    assert cores == "Other programs had this machine's cores for 43% of the time."


def test_a_rate_without_a_job_is_none_of_now() -> None:
    assert advice_of(verdict()).now == "480.0 MB/s now"
    assert advice_of(verdict(from_job=False)).now == "at most 480.0 MB/s"


def test_changes_are_ready_to_read() -> None:
    assert [change for change, _ in advice_of(verdict()).changes] == [
        "max_concurrency = 32",
        'memory_budget = "1GiB"',
        "outside streamrec",
    ]


def test_numbers() -> None:
    facts = dict(view_of(figures()).facts)
    assert facts["Whole job"] == "467.4 MB/s"
    assert facts["First byte, p50"] == "48 ms"
    assert facts["One connection"] == rate(CONNECTION)
    assert facts["Dataset"] == "148.0 GB"
    assert view_of(bare()).facts == []


def test_the_job_has_its_cores() -> None:
    job = figures().job
    assert job
    told = job.model_copy(update={"core_seconds": 4.0, "core_wait_seconds": 0.5})
    assert dict(view_of(figures(job=told)).job)["Cores"] == "used for 4.0 s, waited for 500 ms"
    assert "Cores" not in dict(view_of(figures()).job)


def test_the_job_has_its_requests() -> None:
    job = dict(view_of(figures()).job)
    assert job["Bytes read over used"] == "1.04"
    assert job["Limit of requests at a time"] == "16 (max_concurrency)"
    assert job["Simulated step"] == "30 ms"
    plain = figures().job
    assert plain
    nothing = dict.fromkeys(("concurrency", "loop_busy", "step_seconds"))
    rows = view_of(figures(job=plain.model_copy(update={**nothing, "bytes": 0}))).job
    assert [name for name, _ in rows] == [
        *("Batches", "Ended by", "Requests", "Retried, hedged", "Told to slow down"),
    ]


def test_a_simulation_is_named() -> None:
    target = Target(kind="simulation", urls=["s3://made/"], simulation="latency=50ms")
    assert view_of(figures(target=target)).settings == [
        ("shards", "1,024, listed in 210 ms"),
        ("simulation", "latency=50ms"),
    ]


def test_many_urls_are_counted() -> None:
    view = view_of(figures(target=Target(kind="store", urls=[f"s3://b/{i}" for i in range(30)])))
    assert view.title == "s3://b/0 and 29 others"
    assert len(view.urls) == 21
    assert view.urls[-1] == "and 10 more"
    assert view_of(figures(target=Target(kind="simulation", urls=[]))).title == "simulation"


def test_a_sweep_that_still_grew_has_no_plateau() -> None:
    sweep = figures().sweep
    assert sweep
    for shown, has_plateau in ((sweep, True), (sweep.model_copy(update={"plateau": None}), False)):
        grid = view_of(figures(sweep=shown)).grid
        assert grid
        assert grid.has_plateau == has_plateau
    nothing = Sweep(cells=[], connection_bytes_per_second=None, plateau=None)
    assert view_of(figures(sweep=nothing)).grid is None


def test_compressed_samples_have_two_sizes() -> None:
    half = processing().model_copy(update={"stored_bytes": 256_000_000})
    assert view_of(figures(processing=half)).sample.endswith("256.0 MB as they are stored")


def test_the_budget_is_a_part_that_never_leaves_its_bar() -> None:
    more = Limits(seconds=90.0, bytes=0, requests=1)
    rows = view_of(figures(spent=more, limits=Limits(seconds=60.0, bytes=0, requests=4))).spent
    assert [(row.text, row.part) for row in rows] == [("100%", 1.0), ("0%", 0.0), ("25%", 0.25)]


def test_costs_that_are_not_known_are_left_out() -> None:
    free = Costs(currency="EUR", prices="none", spent=0.0, epoch=None, epoch_requests=None)
    assert view_of(figures(costs=free)).costs == [("This benchmark", "0.00 EUR")]
    known = free.model_copy(update={"spent": 0.55, "epoch": 12.0, "epoch_requests": 0.25})
    assert view_of(figures(costs=known)).costs == [
        ("This benchmark", "0.55 EUR"),
        ("One epoch", "12.00 EUR"),
        ("of that, requests", "0.25 EUR"),
    ]
