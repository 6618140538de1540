"""Downloads objects of an S3 store with other clients, and with our store's own receiver.

Each keeps so many requests in flight, has the bytes in memory, and decodes nothing. A function for
each client imports it, and returns the download: its interpreter may lack the others, and aiohttp.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from bench.stopwatch import Arguments, Stopwatch, main

RANGE_BYTES = 8 << 20
REGION = "us-east-1"
TARGET_GBPS = 10.0
"""Rate by which clients of Amazon's library choose their number of connections."""


Download = Callable[[], int]
"""A function that downloads everything, and returns the number of bytes."""


class Range(NamedTuple):
    """Bytes ``[start, stop)`` of an object."""

    bucket: str
    key: str
    start: int
    stop: int


class Task(NamedTuple):
    """What is downloaded."""

    endpoint: str
    credentials: tuple[str, str]
    """Key and secret."""
    objects: list[tuple[str, str, int]]
    """Bucket, key and size of each."""
    in_flight: int

    def ranges(self) -> Iterator[Range]:
        for bucket, key, size in self.objects:
            for start in range(0, size, RANGE_BYTES):
                yield Range(bucket, key, start, min(start + RANGE_BYTES, size))

    def with_threads(self, get: Callable[[Range], int]) -> int:
        """Get all ranges by a blocking function, and return the bytes received."""
        with ThreadPoolExecutor(self.in_flight) as threads:
            return sum(threads.map(get, self.ranges()))

    def objects_with_threads(self, get: Callable[[str, str], int]) -> int:
        """Get all objects by a function that divides each; it has as many requests in flight."""
        pairs = [(bucket, key) for bucket, key, _ in self.objects]
        largest = max(size for _, _, size in self.objects)
        with ThreadPoolExecutor(max(1, self.in_flight * RANGE_BYTES // largest)) as threads:
            return sum(threads.map(lambda pair: get(*pair), pairs))


def streamrec(task: Task) -> Download:
    """Receive as a stream does: into memory that is used again and again."""
    import numpy as np

    from bench.readers.streams import import_all
    from streamrec.flow.bridge import new_event_loop
    from streamrec.stores.s3.s3_store import S3Store

    import_all()
    key, secret = task.credentials
    options = {"endpoint_url": task.endpoint, "key": key, "secret": secret}

    async def line(store: S3Store, ranges: Iterator[Range]) -> int:
        memory, received = np.ones(RANGE_BYTES, np.uint8), 0
        for bucket, key, start, stop in ranges:
            async with store.open_range(f"s3://{bucket}/{key}", start, stop) as body:
                await body.fill(memory.data[: stop - start], lambda _: None)
            received += stop - start
        return received

    async def download() -> int:
        store, ranges = S3Store(options), task.ranges()
        try:
            return sum(await asyncio.gather(*(line(store, ranges) for _ in range(task.in_flight))))
        finally:
            await store.aclose()

    def run() -> int:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(download())

    return run


def curl(task: Task) -> Download:
    """Have one process of curl drop the bytes; it signs nothing."""
    options = "silent\nfail\noutput = /dev/null\n"
    parts = [
        f'url = "{task.endpoint}/{bucket}/{key}"\nrange = "{start}-{stop - 1}"\n{options}'
        for bucket, key, start, stop in task.ranges()
    ]
    parallel = ("--parallel", "--parallel-immediate", "--parallel-max", str(task.in_flight))
    configuration = "next\n".join(parts).encode()

    def run() -> int:
        command, drop = ["curl", *parallel, "--config", "-"], subprocess.DEVNULL
        subprocess.run(command, input=configuration, stderr=drop, check=True)
        return sum(size for _, _, size in task.objects)

    return run


def obstore(task: Task) -> Download:
    """Await ranges of obstore, which is written in Rust."""
    library, stores = import_module("obstore"), import_module("obstore.store")
    key, secret = task.credentials

    def open_bucket(bucket: str) -> Any:
        return stores.S3Store(
            bucket,
            endpoint=task.endpoint,
            access_key_id=key,
            secret_access_key=secret,
            region=REGION,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    buckets = {bucket: open_bucket(bucket) for bucket, _, _ in task.objects}

    async def line(ranges: Iterator[Range]) -> int:
        get = library.get_range_async
        return sum([len(await get(buckets[b], key, start=i, end=j)) for b, key, i, j in ranges])

    async def download() -> int:
        ranges = task.ranges()
        return sum(await asyncio.gather(*(line(ranges) for _ in range(task.in_flight))))

    return lambda: asyncio.run(download())


def s3dlio(task: Task) -> Download:
    """Get ranges of s3dlio, which is written in Rust, in threads."""
    get = import_module("s3dlio").get_range

    def get_range(part: Range) -> int:
        return len(get(f"s3://{part.bucket}/{part.key}", part.start, part.stop - part.start))

    return lambda: task.with_threads(get_range)


def s3torchconnector(task: Task) -> Download:
    """Read objects with the client of Amazon's connector for PyTorch, which divides them."""
    module = import_module("s3torchconnectorclient._mountpoint_s3_client")
    client = module.MountpointS3Client(
        region=REGION,
        user_agent_prefix="bench",
        endpoint=task.endpoint,
        force_path_style=True,
        throughput_target_gbps=TARGET_GBPS,
    )

    def get(bucket: str, key: str) -> int:
        return sum(map(len, client.get_object(bucket, key)))

    return lambda: task.objects_with_threads(get)


def awscrt(task: Task) -> Download:
    """Get objects with the S3 client of Amazon's common runtime, which divides them."""
    auth, http, io, s3 = (import_module(f"awscrt.{name}") for name in ("auth", "http", "io", "s3"))
    scheme, _, host = task.endpoint.partition("://")
    tls = None
    if scheme == "https":
        options = io.TlsContextOptions()
        options.override_default_trust_store_from_path(None, os.environ["SSL_CERT_FILE"])
        tls = io.ClientTlsContext(options).new_connection_options()
        tls.set_server_name(host.partition(":")[0])
    group = io.EventLoopGroup()
    modes = s3.S3RequestTlsMode
    client = s3.S3Client(
        bootstrap=io.ClientBootstrap(group, io.DefaultHostResolver(group)),
        region=REGION,
        credential_provider=auth.AwsCredentialsProvider.new_static(*task.credentials),
        tls_connection_options=tls,
        tls_mode=modes.DISABLED if tls is None else modes.ENABLED,
        part_size=RANGE_BYTES,
        throughput_target_gbps=TARGET_GBPS,
    )

    def get(bucket: str, key: str) -> int:
        sizes: list[int] = []
        request = http.HttpRequest("GET", f"/{bucket}/{key}", http.HttpHeaders([("Host", host)]))
        client.make_request(
            type=s3.S3RequestType.GET_OBJECT,
            request=request,
            on_body=lambda chunk, **_: sizes.append(len(chunk)),
        ).finished_future.result()
        return sum(sizes)

    return lambda: task.objects_with_threads(get)


CLIENTS: dict[str, Callable[[Task], Download]] = {
    "streamrec": streamrec,
    "curl": curl,
    "obstore": obstore,
    "s3dlio": s3dlio,
    "s3torchconnector": s3torchconnector,
    "awscrt": awscrt,
}


def download(client: str, arguments: Arguments) -> dict[str, Any]:
    """Download all objects with a client, and return the report."""
    options = arguments["storage_options"]
    objects = [(bucket, key, size) for bucket, key, size in arguments["objects"]]
    credentials = options["key"], options["secret"]
    task = Task(options["endpoint_url"], credentials, objects, arguments["in_flight"])
    run, watch = CLIENTS[client](task), Stopwatch(arguments["companions"])
    watch.start()
    watch.nbytes = run()
    watch.stop()
    return watch.report()


if __name__ == "__main__":
    main({name: partial(download, name) for name in CLIENTS})
    # The threads of obstore abort one interpreter in six that ends after awaiting them.
    os._exit(0)
