"""Plants each bottleneck many times, several at a time, and counts how often a verdict names it.

The jobs that run at the same time are one another's load. So what is counted is whether a verdict
holds on a machine that is busy, as most are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from bench.harness import PATH, Report, Run, benchmark, run_async, table
from bench.verdicts import CASES, NEAR, Planted, first_look, of_feeder, serve_case, settings_of
from streamrec.measure.figures import Figures
from streamrec.measure.verdict import judge

CHUNK = 5
"""Runs against one store."""
LARGE: Mapping[str, Any] = {"step": None, "shards": 24, "records": 160, "record": 100_000}
"""Shards of 16 MB, and a loop that takes batches as they come."""
SLOW_STORE = "budget of one batch, slow store"


def _in_small_batches(case: Planted) -> Planted:
    """Return a case with a fourth of the pictures in a batch: on a busy machine they take long."""
    return replace(case, settings={**case.settings, "batch_size": 2})


PLANTED: Mapping[str, Planted] = {
    **{case.name: _in_small_batches(case) if case.pictures else case for case in CASES},
    "throttling at 20 a second": Planted("throttling", {**NEAR, "request-rate": 20}, **LARGE),
    "max_concurrency of 4": Planted(
        "max_concurrency", {"latency": 0.1, "bandwidth": 5e6}, {"max_concurrency": 4}, **LARGE
    ),
    "link and defaults": Planted("link", {**NEAR, "link": 20e6}, **LARGE),
    SLOW_STORE: Planted(
        "memory budget", {"latency": 0.3}, {"memory_budget": "8MiB"}, batch=64, **LARGE
    ),
}
"""The bottlenecks by what they are called in the table."""
LONGER: Mapping[str, float] = {
    **dict.fromkeys(("memory budget", "decoding", "feeder", "link and defaults"), 2.0),
    SLOW_STORE: 3.0,
}
"""Times the seconds of others that a run needs until its job has got enough to be judged."""


async def measure_case(
    title: str, numbers: Sequence[int], seconds: float, keep: Path | None
) -> list[dict[str, Any]]:
    """Measure a case so many times against one store, and return what each verdict says."""
    case = PLANTED[title]
    found = []
    async with serve_case(case) as source:
        for number in numbers:
            figures = await _figures(case, source, seconds * LONGER.get(title, 1.0))
            found.append(_facts(title, case, figures))
            if keep is not None:
                (keep / f"{title} {number}.json").write_text(figures.model_dump_json(indent=1))
    return found


async def _figures(case: Planted, source: Mapping[str, Any], seconds: float) -> Figures:
    if case.name == "feeder":
        return await of_feeder(case, source, seconds=seconds)
    return await first_look(case, settings_of(case, source), seconds)


def _facts(title: str, case: Planted, figures: Figures) -> dict[str, Any]:
    verdict = figures.verdict
    return {
        "planted": title,
        "expected": case.name,
        "named": verdict.bottleneck if verdict else None,
        "busy": (verdict.busy if verdict else None) or 0.0,
        "summary": verdict.summary if verdict else "",
    }


def _run(
    title: str, numbers: Sequence[int], seconds: float, keep: Path | None
) -> list[dict[str, Any]]:
    """Run in a process of its own."""
    return run_async(measure_case(title, numbers, seconds, keep))


def _chunks(titles: Sequence[str], repeat: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the runs of each process: cases in turn, so that they are one another's load."""
    for first in range(0, repeat, CHUNK):
        for title in titles:
            yield title, range(first, min(first + CHUNK, repeat))


def judge_again(titles: Sequence[str], kept: Path) -> Iterator[dict[str, Any]]:
    """Yield what verdicts say of the figures of an earlier run, by the rules of now."""
    for title in titles:
        case = PLANTED[title]
        for path in sorted(kept.glob(f"{title} [0-9]*.json")):
            figures = Figures.model_validate_json(path.read_text())
            is_feeder = figures.target.kind == "feeder"
            settings = None if is_feeder else settings_of(case, {"source": "s3://bucket/shard-*"})
            judged = figures.model_copy(update={"verdict": judge(figures, settings)})
            yield _facts(title, case, judged)


def as_markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of what was planted, and how often it was named.

    *busy* is the part of the time in which a job could run and other programs had the cores.
    """
    header = ["planted", "to be named", "named", "of", "otherwise", "busy"]
    rows = []
    for title in dict.fromkeys(one["planted"] for one in found):
        runs = [one for one in found if one["planted"] == title]
        named = Counter(one["named"] or "nothing" for one in runs)
        expected = runs[0]["expected"]
        others = ", ".join(f"{count} {name}" for name, count in named.items() if name != expected)
        parts = [one["busy"] for one in runs]
        busy = f"{min(parts):.0%} to {max(parts):.0%}"
        rows.append([title, expected, f"{named[expected]}", f"{len(runs)}", others, busy])
    return "# How often a planted bottleneck is named\n\n" + table(header, rows)


def _measure_all(
    titles: Sequence[str], repeat: int, at_a_time: int, seconds: float, keep: Path | None
) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(at_a_time, get_context("spawn")) as pool:
        tasks = [pool.submit(_run, *chunk, seconds, keep) for chunk in _chunks(titles, repeat)]
        return [one for task in as_completed(tasks) for one in task.result()]


@benchmark("repeated_verdicts", repeat=20, only=True)
@click.option("--at-a-time", type=click.IntRange(1), default=6, show_default=True, help="Jobs.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Seconds of a run.")
@click.option("--again", type=PATH, help="Measure nothing; judge figures that --keep kept.")
@click.option("--keep", type=PATH, help="Directory to keep figures in.")
def main(
    run: Run, *, at_a_time: int, seconds: float, again: Path | None, keep: Path | None
) -> Report:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    titles = [title for title in PLANTED if run.selects(title)]
    if again is not None:
        found = [*judge_again(titles, again)]
    else:
        found = _measure_all(titles, run.repeat, at_a_time, seconds, keep)
    for one in found:
        if one["named"] != one["expected"]:
            click.echo(f"{one['planted']}: {one['summary']}")
    text = as_markdown(sorted(found, key=lambda one: titles.index(one["planted"])))
    return Report(text, {"verdicts": found})


if __name__ == "__main__":
    main()
