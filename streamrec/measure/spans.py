"""The spans of a job, and their form as a trace for Perfetto and Chrome.

The form is Chrome's `trace event format`_: complete events (``"ph": "X"``) with times in
microseconds, one thread for each row, and metadata that name and sort the rows.

.. _trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST: Final = 500_000
"""The most spans that are kept, some 200 bytes each: a minute of a fast job has fewer."""

GROUPS: Final = {
    "trainer": ("Trainer", "trainer"),
    "wait": ("What holds the job back", "stage"),
    "batch": ("Batches in threads", "thread"),
    "lane": ("Lanes", "lane"),
    "request": ("Requests", "connection"),
}
"""By track: the title of a group of rows, and the name of a row."""


class Span(NamedTuple):
    """A piece of work, from its beginning to its end in seconds of one clock."""

    track: str
    """The kind of work, as :class:`streamrec.flow.stages.Collector` names it."""
    name: str
    began: float
    ended: float
    facts: dict[str, Any]


class Spans:
    """A collector of the spans of one job.

    Args:
        most: The number of spans after which further ones are only counted.
    """

    def __init__(self, most: int = MOST) -> None:
        self.all: list[Span] = []
        """The spans, in the order in which they ended."""
        self.left_out = 0
        """The number of spans that came when there were already too many."""
        self._most = most

    def add(self, track: str, name: str, began: float, ended: float, **facts: Any) -> None:
        """Keep a span; see :class:`streamrec.flow.stages.Collector`."""
        if len(self.all) < self._most:
            self.all.append(Span(track=track, name=name, began=began, ended=ended, facts=facts))
        else:
            # Counted and told in the trace, so that nobody takes the end of the spans for that of
            # the job.
            self.left_out += 1

    def rows(self) -> dict[tuple[str, int], list[Span]]:
        """Return the spans by track and row, in the order of their beginning.

        A lane is a row. Requests, and batches in threads, take the first row that is free, as they
        do with a connection or a thread. Waits for one stage that follow each other are one.
        """
        tracks = defaultdict(list)
        for span in sorted(self.all, key=lambda span: span.began):
            tracks[span.track].append(span)
        if "wait" in tracks:
            tracks["wait"] = [*_join(tracks["wait"])]
        rows: dict[tuple[str, int], list[Span]] = defaultdict(list)
        for track in (name for name in GROUPS if name in tracks):
            for row, span in _place(tracks[track]):
                rows[track, row].append(span)
        return dict(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the trace, as JSON can hold it."""
        rows = self.rows()
        start = min((span.began for span in self.all), default=0.0)
        events = [event for row, spans in rows.items() for event in _events(row, spans, start)]
        return {
            "displayTimeUnit": "ms",
            "otherData": {"spans_left_out": self.left_out},
            "traceEvents": [*_names(rows), *events],
        }

    def to_json(self) -> str:
        """Return the trace as JSON."""
        return json.dumps(self.to_dict())


def _join(waits: Iterable[Span]) -> Iterator[Span]:
    """Join waits for the same stage that follow each other."""
    before: Span | None = None
    for span in waits:
        if before is not None and before.name == span.name:
            before = before._replace(ended=span.ended)
            continue
        if before is not None:
            yield before
        before = span
    if before is not None:
        yield before


def _place(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Give each span its row: its lane, or the lowest one that is free."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows = 0
    for span in spans:
        if "lane" in span.facts:
            yield span.facts["lane"], span
            continue
        if span.track == "wait":
            yield 0, span
            continue
        # The lowest free row, as a pool gives a connection again: rows stay few.
        while busy and busy[0][0] <= span.began:
            heappush(free, heappop(busy)[1])
        row, rows = (heappop(free), rows) if free else (rows, rows + 1)
        heappush(busy, (span.ended, row))
        yield row, span


def _names(rows: Iterable[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield the metadata that name and sort the groups and their rows."""
    # Trace viewers group rows by processes, so each group is one.
    numbers = {track: number for number, track in enumerate(GROUPS, 1)}
    for track in dict.fromkeys(track for track, _ in rows):
        pid, (title, _) = numbers[track], GROUPS[track]
        yield _metadata("process_name", pid, name=title)
        yield _metadata("process_sort_index", pid, sort_index=pid)
    for track, row in rows:
        name = GROUPS[track][1]
        title = name if track in ("trainer", "wait") else f"{name} {row}"
        yield _metadata("thread_name", numbers[track], row, name=title)


def _metadata(kind: str, pid: int, tid: int = 0, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments}


def _events(row: tuple[str, int], spans: Iterable[Span], start: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a row; within a request, its wait for the first byte, and its body."""
    track, tid = row
    place = {"ph": "X", "cat": track, "pid": [*GROUPS].index(track) + 1, "tid": tid}

    def event(name: str, began: float, ended: float, facts: dict[str, Any]) -> dict[str, Any]:
        # Whole nanoseconds, so that rounding lets nothing end after what it is a part of.
        first, last = (round((moment - start) * 1e9) for moment in (began, ended))
        return place | {"name": name, "ts": first / 1e3, "dur": (last - first) / 1e3, "args": facts}

    for span in spans:
        facts = dict(span.facts)
        first_byte = facts.pop("first_byte", None)
        if "url" in facts:
            facts["url"] = masked(facts["url"])
        yield event(span.name, span.began, span.ended, facts)
        if first_byte is not None:
            yield event("first_byte", span.began, first_byte, {})
            yield event("body", first_byte, span.ended, {})
