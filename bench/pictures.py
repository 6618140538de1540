"""Draws how reading overlaps with the rest: naive, prefetched, interleaved, and mapped in parallel.

One shard is one batch, from a store on loopback with a latency and a rate for each connection. The
first picture is of a plain loop; the others are of streamrec, with settings that take away what the
next one adds. All is drawn from the spans of the runs, on one scale.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.cases import say
from bench.charts import new_figure
from bench.harness import Report, Run, benchmark, run_async
from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits
from streamrec.measure.job import run_job
from streamrec.measure.spans import Span, Spans
from streamrec.stores.base.protocol import Store
from streamrec.stores.open import Stores

SHARDS, RECORDS, RECORD_BYTES = 12, 8, 16_000
SHARD_BYTES = RECORDS * (RECORD_BYTES + 16)
FIRST_BYTE, BODY, MAP, STEP = 0.08, 0.08, 0.08, 0.06
"""Seconds that each part of a batch takes."""

BAR, ROWS = 0.8, {"request": "read", "batch": "map", "trainer": "train"}
COLORS = {"first_byte": "#c6d7ea", "body": "#2f6db3", "map": "#e0a030", "step": "#1b7f5c"}
"""Of different lightness, so that they can be told apart in gray, too."""
WORDS = {"first_byte": "first byte", "body": "body", "map": "map", "step": "train"}


class Picture(NamedTuple):
    """A picture: how it is read, and what it shows."""

    title: str
    settings: dict[str, Any] | None
    """Those of streamrec; ``None``: a plain loop."""
    locks: bool
    """Whether the map holds a lock, as Python code holds the interpreter's."""


PICTURES = {
    "naive": Picture("A plain loop: one thing after the other", None, locks=True),
    "prefetched": Picture(
        "Prefetched: one request at a time, beside map and training",
        {"lanes": 1, "max_concurrency": 1},
        locks=True,
    ),
    "interleaved": Picture(
        "Interleaved: four lanes, each with a request",
        {"lanes": 4, "max_concurrency": 4},
        locks=True,
    ),
    "parallel": Picture(
        "Mapped in parallel: the map lets go of the interpreter",
        {"lanes": 4, "max_concurrency": 4},
        locks=False,
    ),
}


class Bar(NamedTuple):
    """A part of a picture, in seconds from its beginning."""

    row: str
    part: str
    began: float
    ended: float


@benchmark("pictures")
def main(_: Run) -> Report:
    drawn = {}
    with store() as running:
        run_async(read(running, PICTURES["parallel"]))  # what is imported is imported now
        for name, picture in PICTURES.items():
            drawn[name] = bars(run_async(read(running, picture)).all)
            say(f"{picture.title}: {end_of(drawn[name]):.2f} s")
    settings = {"first_byte": FIRST_BYTE, "body": BODY, "map": MAP, "step": STEP}
    plain = {name: [bar._asdict() for bar in of] for name, of in drawn.items()}
    return Report("", {"settings": settings, "pictures": plain})


def draw_anew(results: Path, images: Path) -> list[Path]:
    """Draw the pictures that are not those of the results, and return their files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    plain = json.loads(results.read_text())["pictures"]
    drawn = {name: [Bar(**bar) for bar in bars] for name, bars in plain.items()}
    targets = {name: images / f"reading-{name}.svg" for name in drawn}
    old = [name for name in drawn if digest(drawn[name]) not in targets[name].read_text()]
    for name in old:
        longest = max(map(end_of, drawn.values()))
        draw(PICTURES[name].title, drawn[name], longest, targets[name])
    return [targets[name] for name in old]


def store() -> DevStore:
    running = DevStore(latency=FIRST_BYTE, bandwidth=SHARD_BYTES / BODY)
    shard = frame(np.random.default_rng(0).bytes(RECORD_BYTES)) * RECORDS
    for number in range(SHARDS):
        running.objects[f"bucket/part-{number:02}"] = shard
    return running


async def read(running: DevStore, picture: Picture) -> Spans:
    """Read all shards in a picture's way, and return the spans."""
    spans, lock = Spans(), threading.Lock() if picture.locks else nullcontext()

    def slow(batch: Mapping[str, Any]) -> dict[str, Any]:
        with lock:
            began = time.monotonic()
            time.sleep(MAP)
            spans.add("batch", "map", began, time.monotonic())
        return dict(batch)

    given = {
        "source": "s3://bucket/part-*",
        "storage_options": running.storage_options,
        "batch_size": RECORDS,
        **(picture.settings or {}),
    }
    settings = validate(DatasetSettings, {**given, "map": slow})
    if picture.settings is None:
        await read_naively(settings, spans, slow)
    else:
        budget = Budget(Limits(seconds=60, bytes=1 << 30, requests=1000))
        await run_job(settings, budget, seconds=60, step_seconds=STEP, spans=spans)
    return spans


async def read_naively(
    settings: DatasetSettings, spans: Spans, slow: Callable[[dict[str, Any]], object]
) -> None:
    """Read a shard, map it, and train on it, before the next one is asked for."""
    stores = Stores(settings.storage_options)
    try:
        for found in await stores.resolve(settings.urls):
            await read_shard(stores.store_for(found.url), found.url, spans)
            slow({})
            began = time.monotonic()
            await asyncio.sleep(STEP)
            spans.add("trainer", "step", began, time.monotonic())
    finally:
        await stores.aclose()


async def read_shard(store: Store, url: str, spans: Spans) -> None:
    memory, arrivals = bytearray(SHARD_BYTES), []
    began = time.monotonic()
    async with store.open_range(url, 0, SHARD_BYTES) as body:
        await body.fill(memoryview(memory), lambda _: arrivals.append(time.monotonic()))
    spans.add("request", "request", began, time.monotonic(), first_byte=arrivals[0])


def bars(spans: Iterable[Span]) -> list[Bar]:
    """Return the parts to draw: those of requests, the map, and the steps of the trainer."""
    kept = Spans()
    for span in spans:
        if span.track in ROWS and span.name in ("request", "retry", "map", "step"):
            kept.add(span.track, span.name, span.began, span.ended, **span.facts)
    start = min(span.began for span in kept.all)
    found = []
    for (track, number), row in kept.rows().items():
        name = ROWS[track] + ("" if track == "trainer" else f" {number + 1}")
        for span in row:
            began, ended = _since(start, span.began), _since(start, span.ended)
            if track == "request":
                answered = _since(start, span.facts["first_byte"])
                found.append(Bar(name, "first_byte", began, answered))
                found.append(Bar(name, "body", answered, ended))
            else:
                found.append(Bar(name, span.name, began, ended))
    return sorted(found, key=lambda bar: (list(ROWS.values()).index(bar.row.split()[0]), bar.row))


def _since(start: float, moment: float) -> float:
    """Return the seconds since the beginning, as the file of results can hold them."""
    return round(moment - start, 4)


def digest(drawn: Sequence[Bar]) -> str:
    """Return the digest of a picture's bars, which the picture holds."""
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()


def end_of(drawn: Sequence[Bar]) -> float:
    """Return the seconds from the first request to the end of the last step."""
    return max(bar.ended for bar in drawn)


def draw(title: str, drawn: Sequence[Bar], longest: float, target: Path) -> None:
    """Draw a row for each connection, each thread and the trainer, on a scale for all pictures."""
    names = list(dict.fromkeys(bar.row for bar in drawn))
    figure = new_figure(7.5, 0.7 + 0.24 * len(names))
    panel: Any = figure.subplots()
    for bar in drawn:
        place, width = names.index(bar.row), bar.ended - bar.began
        edge = {"edgecolor": "white", "linewidth": 0.4}
        panel.barh(place, width, left=bar.began, height=BAR, color=COLORS[bar.part], **edge)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xlim(0, longest * 1.01)
    panel.set_xlabel("seconds")
    panel.axvline(end_of(drawn), color="#444444", linewidth=0.8, linestyle=":")
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(f"{title} ({end_of(drawn):.1f} s)", loc="left", fontsize=8)
    handles = [_patch(COLORS[part], WORDS[part]) for part in COLORS]
    panel.legend(
        handles=handles, frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    told = {"Date": None, "Description": digest(drawn)}
    figure.savefig(target, format="svg", metadata=told, facecolor="white")


def _patch(color: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, label=label)


if __name__ == "__main__":
    main()
