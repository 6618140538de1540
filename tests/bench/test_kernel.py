from __future__ import annotations

from bench.cases import Case, Result
from bench.kernel import aims_of
from bench.kernel_cases import WHOLE


def result(group: str, name: str, *rates: float) -> Result:
    """Return a result with these rates."""
    measured = [{"records_per_second": rate, "megabytes_per_second": rate / 1e3} for rate in rates]
    return Result(Case(group, name, "readers.none x", {}), measured)


def test_an_aim_is_a_ratio_of_medians_of_the_fastest_way() -> None:
    results = [
        result(f"{WHOLE}, tokens", "sr.open, async for", 300e3, 100e3, 200e3),
        result(f"{WHOLE}, tokens", "sr.open, for", 100e3),
        result(f"{WHOLE}, tokens", "tf.data", 50e3),
    ]
    found = {aim.name: aim.measured for aim in aims_of(results, "native")}
    assert found["tokens from files to batches, of tf.data"] == 4.0
    assert found["recsys from files to batches, of tf.data"] is None


def test_a_case_that_failed_is_in_no_aim() -> None:
    failed = result(f"{WHOLE}, tokens", "sr.open, for")
    failed.failures.append("exit code 1")
    theirs = result(f"{WHOLE}, tokens", "tf.data", 50e3)
    assert all(aim.measured is None for aim in aims_of([failed, theirs], "native"))
