from __future__ import annotations

from typing import Any

import pytest

from bench.soak import is_flat


def points(**last: int) -> list[dict[str, Any]]:
    """Return the points of a hundred clients, the last with other values."""
    usual = {"megabytes": 100, "descriptors": 20, "tasks": 1, "threads": 2}
    begin = {"clients": 0, **usual, "megabytes": 80, "descriptors": 60}
    return [begin, {"clients": 10, **usual}, {"clients": 100, **usual, **last}]


@pytest.mark.parametrize(
    ("last", "flat"),
    [
        ({}, True),
        ({"megabytes": 120, "descriptors": 60}, True),
        ({"megabytes": 130}, False),
        ({"descriptors": 61}, False),
        ({"tasks": 2}, False),
        ({"threads": 3}, False),
    ],
)
def test_what_grows_is_not_flat(last: dict[str, int], flat: bool) -> None:
    assert is_flat(points(**last)) == flat
