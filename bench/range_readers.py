"""Compares the reader over aiohttp with obstore's, from a loopback store in its own process.

::

    python -m bench.range_readers --tls

It prints a line for each reader and round: MB/s, and seconds of the client's CPU time for each GB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop

from bench.console import repeat_option
from bench.services import STORE_KEYS, self_signed, store
from bench.usage import usage
from streamrec.stores import Stores

if TYPE_CHECKING:
    from streamrec.stores import Store

OBJECT_BYTES = 256 << 20
URL = "s3://bucket/object"


async def read_all(reader: Store, total: int, size: int, in_flight: int) -> None:
    """Read so many bytes in ranges of a size, as often as necessary from the same object."""
    starts = iter([at % OBJECT_BYTES for at in range(0, total, size)])

    async def worker() -> None:
        buffer = memoryview(bytearray(size))
        for start in starts:
            filled = 0
            async with reader.open_range(URL, start, start + size) as body:
                while count := await body.readinto(buffer[filled:]):
                    filled += count
            assert filled == size

    await asyncio.gather(*(worker() for _ in range(in_flight)))


async def measure(
    options: dict[str, Any], total: int, size: int, in_flight: int
) -> tuple[float, float]:
    """Return MB/s, and CPU seconds for each GB."""
    stores = Stores(options)
    reader = stores.store_for(URL)
    await read_all(reader, 4 * size, size, 4)  # imports, credentials, connections
    began, used = time.perf_counter(), usage(os.getpid()).cpu_seconds
    await read_all(reader, total, size, in_flight)
    rate = total / 1e6 / (time.perf_counter() - began)
    cpu = (usage(os.getpid()).cpu_seconds - used) / (total / 1e9)
    await stores.aclose()
    return rate, cpu


@click.command()
@click.option("--gigabytes", default=8.0, show_default=True, help="Gigabytes to read.")
@click.option("--range-mib", default=8, show_default=True, help="Size of a range in MiB.")
@click.option("--in-flight", default=16, show_default=True, help="Number of requests in flight.")
@click.option("--tls", is_flag=True, help="Read over TLS.")
@repeat_option(3)
def main(*, gigabytes: float, range_mib: int, in_flight: int, tls: bool, repeat: int) -> None:
    """Measure both readers, and print their rates."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (root / "bucket").mkdir()
        (root / "bucket" / "object").write_bytes(os.urandom(1 << 20) * (OBJECT_BYTES >> 20))
        certificate = stack.enter_context(self_signed()) if tls else None
        serving = store(root, latency=0.0, bandwidth=None, certificate=certificate)
        served = stack.enter_context(serving)
        options = {
            **STORE_KEYS,
            "endpoint_url": served.endpoint,
            **({"verify": False} if tls else {}),
        }
        for number in range(repeat):
            for name, own in (("aiohttp", {}), ("obstore", {"reader": "obstore"})):
                measured = measure(
                    {**options, **own}, int(gigabytes * 1e9), range_mib << 20, in_flight
                )
                rate, cpu = uvloop.run(measured)
                click.echo(f"round {number} {name:8} {rate:7.0f} MB/s {cpu:6.2f} CPU s/GB")


if __name__ == "__main__":
    main()
