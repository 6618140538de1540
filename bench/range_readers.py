"""The reader over aiohttp beside obstore's: devstore in its own process, on loopback.

    python bench/range_readers.py [--gigabytes 8] [--range-mib 8] [--in-flight 16] [--tls PEM]

Prints a line for each reader and round: MB/s, and seconds of the client's CPU time for each GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from streamrec.stores import Stores

if TYPE_CHECKING:
    from streamrec.stores import Store

OBJECT_BYTES = 256 << 20
URL = "s3://bucket/object"


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def read_all(store: Store, total: int, size: int, in_flight: int) -> None:
    starts = iter([at % OBJECT_BYTES for at in range(0, total, size)])

    async def worker() -> None:
        buffer = memoryview(bytearray(size))
        for start in starts:
            counts: list[int] = []
            async with store.open_range(URL, start, start + size) as body:
                await body.fill(buffer, counts.append)
            assert sum(counts) == size

    await asyncio.gather(*(worker() for _ in range(in_flight)))


async def measure(options: dict[str, Any], arguments: argparse.Namespace) -> tuple[float, float]:
    """MB/s, and CPU seconds for each GB."""
    stores = Stores(options)
    size, total = arguments.range_mib << 20, int(arguments.gigabytes * 1e9)
    store = stores.store_for(URL)
    await read_all(store, 4 * size, size, 4)  # imports, credentials, connections
    began, used = time.perf_counter(), cpu_seconds()
    await read_all(store, total, size, arguments.in_flight)
    rate = total / 1e6 / (time.perf_counter() - began)
    cpu = (cpu_seconds() - used) / (total / 1e9)
    await stores.aclose()
    return rate, cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--range-mib", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", help="a PEM file of certificate and key for 127.0.0.1")
    parser.add_argument("--verify", help="a PEM file of who signed it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "bucket").mkdir()
        (Path(root) / "bucket" / "object").write_bytes(os.urandom(1 << 20) * (OBJECT_BYTES >> 20))
        command = [
            sys.executable,
            "-m",
            "streamrec.devstore",
            "--root",
            root,
            "--until-eof",
            "--warm",
        ]
        command += ["--tls", arguments.tls] if arguments.tls else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as server:  # type: ignore[call-overload]
            endpoint = json.loads(server.stdout.readline())["endpoint"]
            options: dict[str, Any] = {
                "key": "test",
                "secret": "testsecret",
                "endpoint_url": endpoint,
            }
            options |= {"verify": arguments.verify or False} if arguments.tls else {}
            for number in range(arguments.rounds):
                for reader in ("aiohttp", "obstore"):
                    own = options if reader == "aiohttp" else {**options, "reader": reader}
                    rate, cpu = uvloop.run(measure(own, arguments))
                    print(
                        f"round {number} {reader:8} {rate:7.0f} MB/s {cpu:6.2f} CPU s/GB",
                        flush=True,
                    )
            server.stdin.close()


if __name__ == "__main__":
    main()
