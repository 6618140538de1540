from __future__ import annotations

from typing import Any

import pytest

from streamrec.measure.figures import Costs, Limits, Sweep, Target, Verdict
from streamrec.measure.view import advice_of, view_of
from streamrec.report.words import rate
from tests.measure.samples import CONNECTION, bare, figures, processing


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
    assert job["Requests at a time"] == "16 (max_concurrency)"
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
    assert view_of(figures()).has_plateau
    assert not view_of(figures(sweep=sweep.model_copy(update={"plateau": None}))).has_plateau
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
