from __future__ import annotations

import pytest

from streamrec.measure.amounts import amount


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (8 << 20, "B", "8.39 MB"),
        (1e6, "B", "1 MB"),
        (128e12, "B", "128 TB"),
        (60e6, "B/s", "60 MB/s"),
        (1.25e9, "B/s", "1.25 GB/s"),
        (0, "s", "0 s"),
        (2.5e-5, "s", "25 us"),
        (0.15, "s", "150 ms"),
        (1.5, "s", "1.5 s"),
        (90, "s", "90 s"),
        (4104, "s", "68.4 min"),
        (9000, "s", "2.5 h"),
        (864000, "s", "10 d"),
        (0.3, "%", "30 %"),
        (0, "USD", "0.00 USD"),
        (0.0004, "USD", "0.0004 USD"),
        (1234.5, "USD", "1,234.50 USD"),
        (415.3, "/s", "415/s"),
        (5500, "/s", "5,500/s"),
        (79, "", "79"),
        (123456, "", "123,456"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text
