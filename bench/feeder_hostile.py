"""Measures what an honest client of a feeder keeps of its rate beside hostile ones.

One client reads from ``streamrec serve``, as fast as it can. Beside it a process attacks: garbage,
wrong tokens, slow bytes, half-open handshakes, connections that leave at once. All of it shares the
cores of one machine. So the same attack goes against a server that does nothing, too: the
difference is what the feeder has to do with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import product
from pathlib import Path
from statistics import median

import click

from bench.cases import say
from bench.crowd import KINDS, Readers, program, reading
from bench.feeder_connections import write_shards
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from bench.machine import ROOT, title
from bench.services import Daemon, daemon

Rounds = dict[str, list[dict[str, float]]]

TOKEN = "a-token-of-the-bench"
COLUMNS = (
    Column("attack", "attack", str),
    Column("attacks/s", "attacks_s"),
    Column("records/s alone", "alone"),
    Column("beside an attack elsewhere", "elsewhere"),
    Column("beside the attack", "beside"),
    Column("of alone", "of_alone"),
    Column("of elsewhere", "of_elsewhere"),
)


@benchmark("feeder_hostile", repeat=5)
@click.option("--workers", default=1, show_default=True, help="Worker processes of the feeder.")
@click.option("--seconds", default=2.0, show_default=True, help="Time of each measurement.")
def main(run: Run, *, workers: int, seconds: float) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        source = write_shards(Path(directory))
        train = {"source": source, "batch_size": 64, "memory_budget": "64MiB", "epochs": 1_000_000}
        server = {"workers": workers, "token": TOKEN, "log_level": "error"}
        with daemon({"train": train}, **server) as running:
            rounds = run_async(measure(running, run.repeat, seconds))
    text = f"{title()}\n\n{table_of(COLUMNS, medians(rounds))}"
    return Report(text, {"settings": {"workers": workers, "seconds": seconds}, "rounds": rounds})


async def measure(running: Daemon, repeat: int, seconds: float) -> Rounds:
    """Return, for each kind of attack, what was measured in each round."""
    rounds: Rounds = {kind: [] for kind in KINDS}
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
    async with attacking(kind, nobody):
        elsewhere = await client.rate(seconds)
    async with attacking(kind, feeder) as attack:
        beside = await client.rate(seconds)
    return {"alone": alone, "elsewhere": elsewhere, "beside": beside, **attack}


@asynccontextmanager
async def honest(running: Daemon) -> AsyncIterator[Readers]:
    """Have a client read while the block runs."""
    async with reading(f"{running.listen}/train", 1, token=TOKEN) as readers:
        await asyncio.sleep(1)
        yield readers


@asynccontextmanager
async def attacking(kind: str, port: int) -> AsyncIterator[dict[str, float]]:
    """Attack a port while the block runs; afterwards there are the ``attacks_s``."""
    found: dict[str, float] = {}
    command = program("attack", kind, "127.0.0.1", str(port))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
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
    pipes = {"stdin": PIPE, "stdout": PIPE}
    with subprocess.Popen(program("sink"), cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def medians(rounds: Rounds) -> list[dict[str, object]]:
    """Return the medians of each attack, ratios those of the rounds."""

    def of(found: list[dict[str, float]], name: str, other: str = "") -> float:
        return median(one[name] / (one[other] if other else 1) for one in found)

    return [
        {
            "attack": kind,
            **{name: of(found, name) for name in ("attacks_s", "alone", "elsewhere", "beside")},
            **{f"of_{other}": of(found, "beside", other) for other in ("alone", "elsewhere")},
        }
        for kind, found in rounds.items()
    ]


if __name__ == "__main__":
    main()
