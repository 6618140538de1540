"""Measures whether time grows no faster than the input, up to extreme sizes.

Each case works on input of a size, of twice the size and of four times the size, in turns; the
least time of all rounds counts. A case is linear where every doubling takes at most ``MOST`` times
as long: caches, fresh memory and the allocator's ways make a little more than 2 of it. Where one
takes longer the exit code is 1. It measures the kernel that ``STREAMREC_KERNEL`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import click
import numpy as np

from bench.cases import say
from bench.harness import Column, Report, Run, benchmark, table_of
from streamrec import kernel
from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.specs import FixedLenFeature, FixedLenSequenceFeature
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from streamrec.values.columns import ByteArray
from streamrec.values.record_rows import RecordRows
from tests.kernel import extremes
from tests.kernel.wire_bytes import (
    bytes_list,
    delimited,
    entry,
    example,
    feature_lists,
    float_list,
    int64_list,
    steps,
    tag,
    varint,
)

MOST = 3.0
"""Most times as long that twice as much may take; quadratic work takes 4 times as long."""
DOUBLINGS = 2
MANY = 100_000
INT64, BYTES = DataType.INT64, DataType.BYTES
RAGGED = ColumnPlan("a", ColumnKind.VARLEN, INT64)
ONE = ColumnPlan("a", ColumnKind.FIXED, INT64, (), (7,))
LISTS = ColumnPlan("a", ColumnKind.STEPS, INT64)
STRINGS = ColumnPlan("a", ColumnKind.VARLEN, BYTES)


class Extreme(NamedTuple):
    """A kind of input that may be large."""

    name: str
    size: int
    """Number of items in the smallest input."""
    prepare: Callable[[int], Callable[[], object]]
    """Makes the input of a size, and returns the work on it that is measured."""


def scan(shard: ByteArray) -> Callable[[], object]:
    return lambda: kernel.scan_frames(shard, 0, len(shard), True)


def parse(
    rows: RecordRows, plans: Sequence[ColumnPlan], lists: Sequence[ColumnPlan] | None = None
) -> Callable[[], object]:
    parser = kernel.Parser(plans, lists)
    return lambda: parser.parse(rows)


def parse_one(record: bytes, plan: ColumnPlan) -> Callable[[], object]:
    rows = RecordRows.of([record])
    return parse(rows, [], [plan]) if plan.kind is ColumnKind.STEPS else parse(rows, [plan])


def plans_of(numbers: Sequence[int]) -> list[ColumnPlan]:
    return [ColumnPlan(extremes.name(number), ColumnKind.FIXED, INT64) for number in numbers]


def in_any_order(n: int) -> list[int]:
    order: list[int] = np.random.RandomState(n).permutation(n).tolist()
    return order


def features(n: int, numbers: Sequence[int]) -> Callable[[], object]:
    return parse(extremes.rows_of(extremes.many_features(n)), plans_of(numbers))


def prepare_plans(n: int) -> Callable[[], object]:
    plans = plans_of(range(n))
    return lambda: kernel.Parser(plans)


def features_by_specs(n: int) -> Callable[[], object]:
    rows = extremes.rows_of(extremes.many_features(n))
    spec = FixedLenFeature((), "int64")
    specs = {extremes.name(number): spec for number in range(n)}
    return lambda: FeatureParser(specs).parse(rows)


def lists_by_specs(n: int) -> Callable[[], object]:
    spec = FixedLenSequenceFeature((), "int64", allow_missing=True)
    specs = {extremes.name(number): spec for number in range(n)}
    return lambda: FeatureParser((None, specs)).parse_parts(RecordRows.of([b""]))


def large_record(n: int) -> Callable[[], object]:
    return scan(extremes.zeros_in_a_frame(n << 20))


def packed(n: int) -> Callable[[], object]:
    return parse(extremes.rows_of(extremes.packed_values(n)), [RAGGED])


def unpacked(n: int) -> bytes:
    return example(entry("a", delimited(3, (tag(1, 0) + varint(5)) * n)))


def of_two_kinds(n: int) -> bytes:
    return example(entry("a", (float_list(0.5) + int64_list(1)) * n))


def in_pieces(n: int) -> bytes:
    return example(entry("a", int64_list(1)), entry("b", int64_list(1))) * n


def many_values_of_an_entry(n: int) -> bytes:
    return example(delimited(1, delimited(1, b"a") + delimited(2, int64_list(1)) * n))


def unknown_fields(n: int) -> bytes:
    return (tag(9, 0) + varint(1) + tag(9, 3) + tag(8, 3) + tag(8, 4) + tag(9, 4)) * n


CASES = (
    Extreme("empty records, scanned", 10 * MANY, lambda n: scan(extremes.empty_records(n))),
    Extreme(
        "empty records, parsed", 10 * MANY, lambda n: parse(extremes.empty_rows(n), [RAGGED, ONE])
    ),
    Extreme("MiB of one record, scanned", 768, large_record),
    Extreme("packed values of a feature", 250 * MANY, packed),
    Extreme("unpacked values of a feature", 5 * MANY, lambda n: parse_one(unpacked(n), RAGGED)),
    Extreme(
        "empty strings of a feature",
        5 * MANY,
        lambda n: parse_one(example(entry("a", bytes_list(*[b""] * n))), STRINGS),
    ),
    Extreme(
        "steps of a feature list",
        5 * MANY,
        lambda n: parse_one(feature_lists(entry("a", steps(*[int64_list(1)] * n))), LISTS),
    ),
    Extreme("features, three of them planned", MANY, lambda n: features(n, (0, n // 2, n - 1))),
    Extreme("features, all planned, in order", MANY, lambda n: features(n, range(n))),
    Extreme("features, all planned, in any order", MANY, lambda n: features(n, in_any_order(n))),
    Extreme("plans, prepared", MANY, prepare_plans),
    Extreme("features, each by a spec of its own", MANY // 4, features_by_specs),
    Extreme("feature lists, each by a spec of its own", MANY // 4, lists_by_specs),
    Extreme(
        "times the same key",
        MANY,
        lambda n: parse(extremes.rows_of(extremes.duplicates(n)), [RAGGED]),
    ),
    Extreme("lists of two kinds in a feature", MANY, lambda n: parse_one(of_two_kinds(n), RAGGED)),
    Extreme("pieces of a record", MANY, lambda n: parse_one(in_pieces(n), RAGGED)),
    Extreme("pieces of a feature", MANY, lambda n: parse_one(many_values_of_an_entry(n), RAGGED)),
    Extreme("unknown fields and groups", 5 * MANY, lambda n: parse_one(unknown_fields(n), RAGGED)),
)
COLUMNS = (
    Column("how many", lambda row: row["name"] + ("" if row["linear"] else " !"), str),
    Column("n", lambda row: row["sizes"][0], "{:,}"),
    Column("ms", lambda row: 1000 * row["seconds"][0], "{:,.2f}"),
    Column("ms of 2n", lambda row: 1000 * row["seconds"][1], "{:,.2f}"),
    Column("ms of 4n", lambda row: 1000 * row["seconds"][2], "{:,.2f}"),
    Column("2n / n", lambda row: row["growth"][0], "{:.2f}"),
    Column("4n / 2n", lambda row: row["growth"][1], "{:.2f}"),
)


@benchmark("extremes", repeat=5, only=True)
@click.option(
    "--size", default=1.0, show_default=True, help="Size of the input; 1 is the full size."
)
def main(run: Run, *, size: float) -> Report:
    chosen = [case for case in CASES if run.selects(case.name)]
    results = [time_sizes(case, max(int(case.size * size), 1), run.repeat) for case in chosen]
    settings = {"rounds": run.repeat, "size": size, "most": MOST}
    failed = not all(result["linear"] for result in results)
    facts = {"settings": settings, "cases": results}
    return Report("", facts, failed=failed, shown=table_of(COLUMNS, results))


def time_sizes(case: Extreme, size: int, repeat: int) -> dict[str, Any]:
    """Return the least time of each size; the sizes take turns, so that drift hits all alike."""
    say(case.name)
    sizes = [size << doubling for doubling in range(DOUBLINGS + 1)]
    work = [case.prepare(each) for each in sizes]
    times = [[seconds(each) for each in work] for _ in range(repeat + 1)][1:]
    least = [min(column) for column in zip(*times, strict=True)]
    growth = [after / before for before, after in pairwise(least)]
    return {
        "name": case.name,
        "sizes": sizes,
        "seconds": least,
        "growth": growth,
        "linear": max(growth) <= MOST,
    }


def seconds(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


if __name__ == "__main__":
    main()
