from __future__ import annotations

from bench.harness import Case, Comparison, Result
from bench.kernel import as_markdown
from bench.kernel_cases import PARSING, WHOLE, title


def result(group: str, name: str, *rates: float, against: tuple[Comparison, ...] = ()) -> Result:
    """Return a result with these rates of records of 1 KB."""
    case = Case(group, name, "readers.none x", {}, comparisons=against)
    measured = [
        {"records_per_second": rate, "megabytes_per_second": rate / 1e3, "seconds": 1.0}
        for rate in rates
    ]
    return Result(case, measured)


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_has_the_median_the_span_and_the_ratio() -> None:
    kind = "tokens"
    against = (Comparison("of tf.data", (title(WHOLE, kind, "tf.data"),)),)
    results = [
        result(f"{WHOLE}, {kind}", "sr.open, async for", 300e3, 100e3, 200e3, against=against),
        result(f"{WHOLE}, {kind}", "tf.data", 50e3, against=against),
    ]
    text = as_markdown(results)
    assert text.startswith(f"### {WHOLE}, {kind}\n\n")
    head, _, *found = rows(text)
    assert [head[1], head[2], head[-1]] == ["krec/s, min-max", "krec/s", "of tf.data"]
    assert [[row[1], row[2], row[-1]] for row in found] == [
        ["100-300", "200", "4.00"],
        ["50.0-50.0", "50.0", "1.00"],
    ]


def test_what_failed_is_named() -> None:
    failed = result(f"{PARSING}, tokens", "streamrec, native")
    failed.failures.append("exit code 1")
    assert rows(as_markdown([failed]))[2][0] == "streamrec, native (failed)"
