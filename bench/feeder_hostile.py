"""Measures what an honest client of a feeder keeps of its rate beside hostile ones.

::

    python -m bench.feeder_hostile --output bench/results

One client reads from ``streamrec serve``, as fast as it can. Beside it a process attacks: garbage,
wrong tokens, slow bytes, half-open handshakes, connections that leave at once. All of it shares the
cores of one machine. So the same attack goes against a server that does nothing, too: the
difference is what the feeder has to do with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from bench.console import output_option, repeat_option
from bench.crowding.attackers import KINDS
from bench.crowding.clients import Readers, reading
from bench.feeder_connections import write_shards
from bench.machine import ROOT, title
from bench.markdown import number, table
from bench.progress import say
from bench.results import facts, write
from bench.services import daemon
from streamrec.flow.bridge import new_event_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.services import Daemon

TOKEN = "a-token-of-the-bench"


@click.command()
@output_option
@repeat_option(5)
@click.option("--workers", default=1, show_default=True, help="Worker processes of the feeder.")
@click.option("--seconds", default=2.0, show_default=True, help="Time of each measurement.")
def main(*, output: Path | None, repeat: int, workers: int, seconds: float) -> None:
    """Attack a feeder, print a table, and write JSON and Markdown."""
    with tempfile.TemporaryDirectory() as directory:
        source = write_shards(Path(directory))
        train = {"source": source, "batch_size": 64, "memory_budget": "64MiB", "epochs": 1_000_000}
        server = {"workers": workers, "token": TOKEN, "log_level": "error"}
        loop = asyncio.Runner(loop_factory=new_event_loop)
        with daemon({"train": train}, **server) as running, loop as runner:
            rounds = runner.run(measure(running, repeat, seconds))
    text = as_markdown(rounds)
    click.echo(text)
    if output is not None:
        settings = {"workers": workers, "seconds": seconds}
        write(
            output,
            "feeder_hostile",
            facts("feeder_hostile", settings=settings, rounds=rounds),
            text,
        )


async def measure(
    running: Daemon, repeat: int, seconds: float
) -> dict[str, list[dict[str, float]]]:
    """Return, for each kind of attack, what was measured in each round."""
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    feeder = int(running.listen.rpartition(":")[2])
    with sink() as nobody:
        async with honest(running) as client:
            for number, kind in product(range(repeat), KINDS):
                say(f"round {number + 1} of {repeat}: {kind}")
                rounds[kind].append(await compare(client, kind, nobody, feeder, seconds))
    return rounds


async def compare(
    client: Readers, kind: str, nobody: int, feeder: int, seconds: float
) -> dict[str, float]:
    """Return a client's rates: alone, beside an attack on nobody, and on its feeder."""
    alone = await client.rate(seconds)
    async with attacked(kind, nobody):
        elsewhere = await client.rate(seconds)
    async with attacked(kind, feeder) as attack:
        beside = await client.rate(seconds)
    return {"alone": alone, "elsewhere": elsewhere, "beside": beside, **attack}


@asynccontextmanager
async def honest(running: Daemon) -> AsyncIterator[Readers]:
    """Have a client read while the block runs."""
    async with reading(f"{running.listen}/train", 1, token=TOKEN) as readers:
        await asyncio.sleep(1)
        yield readers


@asynccontextmanager
async def attacked(kind: str, port: int) -> AsyncIterator[dict[str, float]]:
    """Attack a port while the block runs; afterwards there are the ``attacks_s``."""
    found: dict[str, float] = {}
    command = [sys.executable, "-m", "bench.crowding.attackers", kind, "127.0.0.1", str(port)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield found
        said, _ = await process.communicate(b"")  # which closes its input
        found["attacks_s"] = float(said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextmanager
def sink() -> Iterator[int]:
    """Run a server that does nothing, and yield its port."""
    command = [sys.executable, "-m", "bench.crowding.sink"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def as_markdown(rounds: dict[str, list[dict[str, float]]]) -> str:
    """Return the machine, and a table of the medians."""
    head = (
        "attack",
        "attacks/s",
        "records/s alone",
        "beside an attack elsewhere",
        "beside the attack",
        "of alone",
        "of elsewhere",
    )
    rows = []
    for kind, found in rounds.items():
        values = [median(one[name] for one in found) for name in ABSOLUTE]
        parts = [median(one[a] / one[b] for one in found) for a, b in RATIOS]
        rows.append((kind, *map(number, values), *map(number, parts)))
    return f"{title()}\n\n{table(head, rows)}"


ABSOLUTE = ("attacks_s", "alone", "elsewhere", "beside")
RATIOS: tuple[Any, ...] = (("beside", "alone"), ("beside", "elsewhere"))


if __name__ == "__main__":
    main()
