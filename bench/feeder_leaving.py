"""Measures what clients of pictures that come and leave do to the others of a feeder.

::

    python -m bench.feeder_leaving

``streamrec serve``, with one and with two workers, serves a dataset of pictures and one of plain
records. A client of the plain records reads, at first alone. Then a hundred clients of pictures
come beside it, in turn, and each leaves in the middle of a batch: in peace, or cut. The table has
the plain client's rate before and meanwhile, and the largest delay of the daemon's event loops. The
clients are a process of this machine, so the rates beside each other say little on two cores.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from PIL import Image

import streamrec as sr
from bench.crowding.clients import PATIENCE, reading
from bench.feeder_connections import write_shards
from bench.markdown import table
from bench.progress import say
from bench.services import daemon
from streamrec.errors import FeedError
from streamrec.feeder.client import AsyncFeed
from streamrec.flow.bridge import new_event_loop
from streamrec.formats.examples.descriptions import describe

if TYPE_CHECKING:
    from bench.services import Daemon

SESSION = 64 << 20
SIDE = 1500
"""Pixels: a picture takes 20 ms of a core, and a batch of 32 half a second or more."""


@click.command()
@click.option("--clients", default=100, show_default=True, help="Clients of pictures.")
@click.option("--together", default=8, show_default=True, help="How many are there at a time.")
@click.option("--seconds", default=5.0, show_default=True, help="Time of the plain client alone.")
def main(*, clients: int, together: int, seconds: float) -> None:
    """Let the clients come and leave, and print a table."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for workers in (1, 2):
            loop = asyncio.Runner(loop_factory=new_event_loop)
            with serving(Path(directory), workers, together) as running, loop as runner:
                measured = runner.run(measure(running, clients, together, seconds))
            rows.append([f"{workers}", *measured])
    names = ["workers", "records/s alone", "meanwhile", "largest delay, s", "delays above 0.1 s"]
    click.echo(table(names, rows))


def serving(directory: Path, workers: int, together: int) -> Any:
    """Run a feeder of both datasets."""
    pictures, plain = directory / "pictures", directory / "plain"
    if not plain.exists():
        pictures.mkdir()
        plain.mkdir()
        write_shards(plain)
        write_pictures(pictures)
    datasets = {
        "pictures": {
            "source": f"{pictures}/*.tfrecord",
            "batch_size": 32,
            "memory_budget": 1 << 30,
            "features": describe({"image": sr.Image()}),
            "epochs": 1000,
            "lanes": 2,
        },
        "plain": {
            "source": f"{plain}/*.tfrecord",
            "batch_size": 64,
            "epochs": 1_000_000,
            "memory_budget": SESSION,
        },
    }
    return daemon(datasets, workers=workers, memory_budget=(together + 1) << 30)


def write_pictures(directory: Path) -> None:
    """Write shards of one picture, many times."""
    pixels = np.random.default_rng(1).integers(0, 255, (SIDE // 50, SIDE // 50, 3), np.uint8)
    picture = Image.fromarray(pixels).resize((SIDE, SIDE))
    held = io.BytesIO()
    picture.save(held, "JPEG")
    for shard in range(2):
        with sr.TFRecordWriter(str(directory / f"{shard}.tfrecord")) as writer:
            for _ in range(128):
                writer.write({"image": held.getvalue()})


async def measure(
    running: Daemon, clients: int, together: int, seconds: float
) -> tuple[str, str, str, str]:
    """Return the plain client's rates, and the delays of the daemon's loops."""
    limit = asyncio.Semaphore(together)
    async with reading(f"{running.listen}/plain", 1) as readers:
        await readers.all_read(1)
        alone = await readers.rate(seconds)
        say(f"{alone:,.0f} records/s alone")
        loop = asyncio.get_running_loop()
        began, before = loop.time(), readers.records
        visits = (visit(f"{running.listen}/pictures", number, limit) for number in range(clients))
        largest = asyncio.create_task(watch(running))
        await asyncio.gather(*visits)
        meanwhile = (readers.records - before) / (loop.time() - began)
        largest.cancel()
        with suppress(asyncio.CancelledError):
            await largest
    shown = await asyncio.to_thread(running.snapshot)
    for line in running.log.read_text().splitlines():
        if "stands still" in line:
            say(line)
    late = sum(shown["loop"]["delay"]["counts"][7:])
    recent = shown["loop"]["recent"]
    return f"{alone:,.0f}", f"{meanwhile:,.0f}", f"{recent:.3f}", f"{late}"


async def watch(running: Daemon) -> None:
    """Say the largest delay of the last minute, again and again."""
    while True:
        await asyncio.sleep(5)
        shown = await asyncio.to_thread(running.snapshot)
        say(f"largest delay {shown['loop']['recent']:.3f} s, {shown['connections']} clients")


async def visit(address: str, number: int, limit: asyncio.Semaphore) -> None:
    """Be a client of pictures that leaves while its next batches are decoded."""
    async with limit:
        with suppress(FeedError, TimeoutError):
            feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE)
            try:
                async with asyncio.timeout(0.2 + number % 5 / 10):
                    await feed.receive()
            finally:
                await feed.aclose()


if __name__ == "__main__":
    main()
