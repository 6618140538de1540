"""The aims of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.aims import Target
from bench.decoding.cases import (
    CRC_ALONE,
    FRAMES,
    MEMORY,
    PARSED,
    PARSING,
    PIPELINES,
    STREAMS,
    WHOLE,
    title,
)
from bench.measure import Comparison, Result, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARSED = ("tf.io.parse_example", "tf.io.parse_example in a tf.function")


def targets(results: Sequence[Result], kernel: str) -> list[Target]:
    """Return the aims that could be measured.

    Args:
        results: Results of this run.
        kernel: Implementation that the aims are for.
    """
    found = [
        *_frames(results, f"streamrec, {kernel}"),
        *_parsing(results, f"streamrec, {kernel}"),
        *_whole(results),
        *_memory(results),
    ]
    return [target for target in found if target is not None]


def _result(results: Sequence[Result], name: str) -> Result | None:
    return next((one for one in results if one.case.title == name and one.measurements), None)


def _frames(results: Sequence[Result], name: str) -> list[Target | None]:
    small = _result(results, title(FRAMES, "recsys", name))
    rate = small and small.median("records_per_second")
    return [
        Target("small records found and checked", "million/s", 20, rate / 1e6) if rate else None,
        _times(
            "large records checked, of the CRC alone",
            0.8,
            results,
            title(FRAMES, "images", name),
            title(FRAMES, "images", CRC_ALONE),
        ),
    ]


def _parsing(results: Sequence[Result], name: str) -> list[Target | None]:
    return [
        _times(
            f"{kind} parsed on one core, of {against} on all",
            aim,
            results,
            title(PARSING, kind, name),
            title(PARSING, kind, other),
        )
        for kind, aim in (("recsys", 10), ("tokens", 5), ("raw-images", 3))
        for against, other in zip(_PARSED, PARSED.values(), strict=True)
    ]


def _whole(results: Sequence[Result]) -> list[Target | None]:
    return [
        _best(
            [
                _times(
                    f"{kind} from files to batches, of {other}",
                    aim,
                    results,
                    title(WHOLE, kind, f"sr.open, {way}"),
                    title(WHOLE, kind, other),
                )
                for way in STREAMS
            ]
        )
        for kind, aim in (("recsys", 5), ("tokens", 5), ("images", 2))
        for other in PIPELINES.values()
    ]


def _best(ways: Sequence[Target | None]) -> Target | None:
    measured = [way for way in ways if way is not None]
    return max(measured, key=lambda way: way.measured, default=None)


def _times(name: str, aim: float, results: Sequence[Result], own: str, other: str) -> Target | None:
    result = _result(results, own)
    found = ratio(result, Comparison("", (other,)), results) if result else None
    return None if found is None else Target(name, "times", aim, found)


def _memory(results: Sequence[Result]) -> list[Target | None]:
    return [
        Target(
            f"most memory in the second five epochs against the first five, {result.case.group}",
            "times",
            1.05,
            _growth(result),
            least=False,
        )
        for result in results
        if result.case.group.startswith(MEMORY) and result.measurements
    ]


def _growth(result: Result) -> float:
    measured = result.measurements[0]
    epochs = [measured[name] for name in sorted(measured) if name.startswith("resident")]
    half = len(epochs) // 2
    return max(epochs[half:]) / max(epochs[:half])
