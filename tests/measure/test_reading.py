from __future__ import annotations

from typing import Any

import pytest

from streamrec.errors import ConfigError
from streamrec.measure.figures import Listing
from streamrec.measure.reading import Reading, memory_needs
from streamrec.plan.reading.ranges import KIB, MIB
from tests.measure.worlds import settings_of

SHARDS = Listing(shards=400, bytes=400 * 2_000_000, requests=1, seconds=1.0)


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({"memory_budget": "16MiB", "max_concurrency": 4, "lanes": 8}, 3.9),
        ({"memory_budget": "16MiB", "max_concurrency": 12, "lanes": 8}, 11.1),
        ({"memory_budget": "16MiB", "lanes": 8}, 36.8),
        ({"memory_budget": "32MiB", "lanes": 16}, 72.7),
        (
            {"memory_budget": "16MiB", "lanes": 8, "shuffle": True, "shuffle_window": "4MiB"},
            24.7,
        ),
    ],
)
def test_as_many_requests_are_under_way_as_were_measured(
    settings: dict[str, Any], measured: float
) -> None:
    """The numbers are of real streams: requests a second, times the seconds of one."""
    reading = Reading.of(settings_of(**settings), SHARDS)
    assert reading.in_flight == pytest.approx(measured, rel=0.1)


def test_the_setting_that_allows_no_more_is_named() -> None:
    few = settings_of(max_concurrency=4)
    assert Reading.of(few, SHARDS).limit == "max_concurrency"
    small = settings_of(memory_budget="16MiB", lanes=8)
    assert Reading.of(small, SHARDS).limit == "memory_budget"


def test_ranges_are_no_larger_than_shards() -> None:
    assert Reading.of(settings_of(), SHARDS).range_bytes == 2_000_000
    assert Reading.of(settings_of(), None).range_bytes == 8 * MIB
    assert Reading.of(settings_of(memory_budget="64MiB"), None).range_bytes == 256 * KIB


def test_empty_shards_have_no_mean() -> None:
    empty = Listing(shards=0, bytes=0, requests=1, seconds=1.0)
    assert Reading.of(settings_of(), empty).range_bytes == 8 * MIB


def test_needs_are_those_of_the_whole_dataset() -> None:
    assert memory_needs(settings_of(), 1000).lanes == 48
    assert memory_needs(settings_of(), 5).lanes == 5
    assert memory_needs(settings_of(shuffle=True), 1000).sublanes == 144
    assert memory_needs(settings_of(source="file:///x"), 1).near
    parts = {"a": "s3://b/a-*", "b": "s3://b/b-*"}
    mixed = settings_of(source=parts, weights={"a": 1.0, "b": 1.0}, lanes=4, epochs=None)
    assert memory_needs(mixed, 1000).sublanes == 8


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small"):
        Reading.of(settings_of(memory_budget="8MiB", lanes=4096), None)
