from __future__ import annotations

from bench.fetch_processes import rows_of


def test_rates_stand_beside_that_of_no_process() -> None:
    def figures(*rates: float) -> list[dict[str, float]]:
        return [
            {"megabytes_per_second": rate, "orderer": rate / 1e3, "fetch": 1.0} for rate in rates
        ]

    rows = rows_of({0: figures(100, 90, 400), 2: figures(150, 140, 160)})
    assert [(row["fetch_processes"], row["ratio"]) for row in rows] == [(0, 1.0), (2, 1.5)]
    assert [(row["orderer"], row["fetch"]) for row in rows] == [(0.1, 1.0), (0.15, 1.0)]
