from __future__ import annotations

import pytest

from bench.harness import Case, Comparison, Result
from bench.kernel import as_markdown
from bench.kernel_cases import BY_SIZE, PARSING, PIPELINES, by_size, title

READERS = ["sr.open, async for", *PIPELINES.values()]


def result(group: str, name: str, *rates: float, against: tuple[Comparison, ...] = ()) -> Result:
    """Return a result with these rates of records of 1 KB."""
    case = Case(group, name, "readers.none x", {}, comparisons=against)
    measured = [
        {"records_per_second": rate, "megabytes_per_second": rate / 1e3, "seconds": 1.0}
        for rate in rates
    ]
    return Result(case, measured)


def of_size(size: int, *rates: tuple[float, ...], kind: str = "tokens") -> list[Result]:
    """Each reader's rates."""
    others = tuple(
        Comparison(f"of {name}", (title(BY_SIZE, kind, by_size(name, size)),))
        for name in PIPELINES.values()
    )
    return [
        result(f"{BY_SIZE}, {kind}", by_size(name, size), *found, against=others)
        for name, found in zip(READERS, rates, strict=False)
    ]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEAD = [
    "batch size",
    "sr.open, async for, krec/s",
    "tf.data, krec/s",
    "tf.data, batched within files, krec/s",
    "of tf.data",
    "of tf.data, batched within files",
]


def test_a_row_for_each_batch_size() -> None:
    results = [
        *of_size(128, (300e3, 100e3, 200e3), (50e3,), (100e3,)),
        *of_size(8192, (900e3,), (50e3,), (450e3,)),
    ]
    text = as_markdown(results)
    assert text.startswith("### from files to batches, by batch size, tokens\n\n")
    head, _, *found = rows(text)
    assert head == HEAD
    assert found == [
        ["128", "200 (100-300)", "50.0 (50.0-50.0)", "100 (100-100)", "4.00", "2.00"],
        ["8,192", "900 (900-900)", "50.0 (50.0-50.0)", "450 (450-450)", "18.0", "2.00"],
    ]


def test_without_tensorflow_there_are_no_ratios() -> None:
    head, _, row = rows(as_markdown(of_size(512, (200e3,))))
    assert head == HEAD
    assert row == ["512", "200 (200-200)", "-", "-", "-", "-"]


def test_of_tensorflow_alone() -> None:
    [_, *others] = of_size(512, (1e3,), (50e3,), (100e3,))
    assert rows(as_markdown(others))[2] == [
        "512",
        "-",
        "50.0 (50.0-50.0)",
        "100 (100-100)",
        "-",
        "-",
    ]


@pytest.mark.parametrize(
    ("rates", "cell"), [((), "(failed)"), ((2e3,), "2.00 (2.00-2.00) (failed)")]
)
def test_what_failed_is_named(rates: tuple[float, ...], cell: str) -> None:
    results = of_size(2048, rates, (50e3,), (100e3,))
    results[0].failures.append("exit code 1")
    assert rows(as_markdown(results))[2][1] == cell


def test_each_kind_has_its_own_table_and_others_keep_theirs() -> None:
    results = [
        result(f"{PARSING}, tokens", "streamrec, native", 5e6),
        *of_size(128, (1e3,), kind="recsys"),
        *of_size(128, (2e3,)),
    ]
    lines = as_markdown(results).splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        f"### {PARSING}, tokens",
        f"### {BY_SIZE}, recsys",
        f"### {BY_SIZE}, tokens",
    ]
    tables = rows(as_markdown(results))
    assert tables[0][:2] == ["", "krec/s, min-max"]
    assert [row[1] for row in tables if row[0] == "128"] == ["1.00 (1.00-1.00)", "2.00 (2.00-2.00)"]
