from __future__ import annotations

import pytest

from bench.cases import Case, Failure, Result
from bench.harness import table_of
from bench.readers.downloads import Load
from bench.sweep import CAPPED, COLUMNS, OWN, aims, cases_of, is_there, judge


def results(place: str, rates: dict[str, float]) -> list[Result]:
    cases = cases_of(place, "http://x", {"bandwidth": 60e6}, [4], 3.0)
    return [
        Result(case, [judge(case, report(rates[case.name]))])
        for case in cases
        if case.name in rates
    ]


def report(megabytes: float, first_byte: float | None = 0.02) -> dict[str, float | None]:
    return {"nbytes": megabytes * 1e6, "seconds": 1.0, "first_byte_seconds": first_byte}


def test_figures_of_a_capped_store_should_be_near() -> None:
    found = aims(results(CAPPED, {OWN: 204.0, "aiohttp alone": 200.0}))
    assert [round(target.measured or 0.0, 6) for target in found] == [0.02, 0.0]
    assert all(target.met for target in found)
    far = aims(results(CAPPED, {OWN: 220.0, "aiohttp alone": 200.0}))
    assert [target.met for target in far] == [False, True]


def test_without_a_cap_the_rate_should_be_no_lower() -> None:
    for rate, met in ((500.0, True), (400.0, True), (300.0, False)):
        (target,) = aims(results("no cap", {OWN: rate, "aiohttp alone": 400.0}))
        assert target.met == met


def test_a_table_has_a_row_for_each_tool() -> None:
    found = results(CAPPED, {OWN: 204.0, "aiohttp alone": 200.0})
    assert table_of(COLUMNS, found).count(CAPPED) == 2
    assert is_there(OWN)


def test_a_tool_without_bytes_has_failed() -> None:
    case = Case("", "", "", {})
    with pytest.raises(Failure):
        judge(case, report(0.0))
    assert list(judge(case, report(1.0, None))) == ["megabytes_per_second"]


def test_every_connection_reads_as_many_ranges() -> None:
    load = Load(["a", "b"], 100, 10, 3, 1.0, 1)
    assert load.requests % 3 == 0
    url, part = next(load.ranges())
    start, last = map(int, part.split("-"))
    assert url in load.urls
    assert (last + 1 - start, start % 10) == (10, 0)
    assert last < 100
