"""Downloads objects with aiohttp, presigned URLs and ranged GETs, and decodes nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from botocore.config import Config
from botocore.session import get_session
from yarl import URL

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory
from streamrec.flow.bridge import new_event_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

RANGE_BYTES = 8 << 20
Count = Callable[[aiohttp.ClientResponse], Awaitable[int]]
"""A function that receives a range and counts its bytes."""


def objects_of(arguments: dict[str, Any]) -> list[tuple[URL, int]]:
    """Return each object's URL, presigned where it is S3's, and its size in bytes."""
    if "urls" in arguments:
        return [(URL(url), size) for url, size in arguments["urls"]]
    options = arguments["storage_options"]
    client = get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    return [
        (
            URL(
                client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}),
                encoded=True,
            ),
            size,
        )
        for bucket, key, size in arguments["objects"]
    ]


def ranges(objects: list[tuple[URL, int]]) -> Iterator[tuple[URL, str]]:
    """Yield the URL and the Range header of each request."""
    for url, size in objects:
        for start in range(0, size, RANGE_BYTES):
            yield url, f"bytes={start}-{min(start + RANGE_BYTES, size) - 1}"


async def keep(response: aiohttp.ClientResponse) -> int:
    """Receive the whole range into memory, as a reader that uses it must."""
    return len(await response.read())


async def drop(response: aiohttp.ClientResponse) -> int:
    """Drop each piece as it arrives, which is the most that aiohttp can receive."""
    return sum([len(piece) async for piece in response.content.iter_any()])


async def fetch(
    session: aiohttp.ClientSession, waiting: Iterator[tuple[URL, str]], count: Count
) -> int:
    """Send one request after the other until none is left; return the bytes received."""
    received = 0
    for url, span in waiting:
        async with session.get(url, headers={"Range": span}) as response:
            response.raise_for_status()
            received += await count(response)
    return received


async def download(arguments: dict[str, Any], watch: Stopwatch) -> None:
    """Keep so many requests in flight until all bytes are received."""
    waiting = ranges(objects_of(arguments))
    count = keep if arguments["keep"] else drop
    warm_memory()
    watch.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        lines = [fetch(session, waiting, count) for _ in range(arguments["in_flight"])]
        watch.nbytes = sum(await asyncio.gather(*lines))
        watch.stop()


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    watch = Stopwatch(arguments["companions"])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(download(arguments, watch))
    watch.print()


if __name__ == "__main__":
    main()
