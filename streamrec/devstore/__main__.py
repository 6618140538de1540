"""The command ``python -m streamrec.devstore``, which runs the store as a process.

It prints one JSON line with its endpoint when it listens. It ends on SIGTERM, on SIGINT or, with
``--until-eof``, at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import click

from streamrec.config.named_files import check_file
from streamrec.devstore.objects import DirectoryObjects, MemoryObjects, Objects, SyntheticObjects
from streamrec.devstore.refusals import FaultRule
from streamrec.devstore.server import DevStore
from streamrec.errors import StreamrecError
from streamrec.flow.bridge import new_event_loop

AMOUNT = click.FloatRange(min=0)
RATE = click.FloatRange(min=0, min_open=True)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--root", type=DIRECTORY, help="Directory of buckets. [memory]")
@click.option("--synthetic", type=click.File(), help="JSON: recipes by bucket, instead.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, help="0: any free one. [0]")
@click.option("--latency", type=AMOUNT, default=0.0, help="Mean seconds before each answer.")
@click.option("--jitter", type=AMOUNT, default=0.0, help="Deviation of the latency, as a part.")
@click.option("--page-latency", type=AMOUNT, help="Seconds before a page of a listing. [latency]")
@click.option("--bandwidth", type=RATE, help="Bytes a second for each connection. [no cap]")
@click.option("--link", type=RATE, help="Bytes a second for all connections. [no cap]")
@click.option("--request-rate", type=RATE, help="Requests a second; 503 beyond. [no cap]")
@click.option("--connections", type=click.IntRange(min=1), help="Requests at once; 503 beyond.")
@click.option("--faults", type=click.File(), help="JSON: a list of rules.")
@click.option("--seed", default=0, help="The seed of jitter and of faults by probability. [0]")
@click.option("--anonymous", is_flag=True, help="Answer requests without a signature too.")
@click.option("--key", default="test", show_default=True, help="The access key that may come in.")
@click.option("--secret", default="testsecret", show_default=True)
@click.option("--token", default="testtoken", show_default=True, help="GCS's bearer token.")
@click.option("--tls", type=click.Path(), help="Serve https: a PEM file of certificate and key.")
@click.option("--warm", is_flag=True, help="Compute all ETags before listening.")
@click.option("--until-eof", is_flag=True, help="End when standard input does.")
def main(
    *,
    root: Path | None,
    key: str,
    secret: str,
    faults: Any,
    tls: str | None,
    synthetic: Any,
    warm: bool,
    until_eof: bool,
    **store: Any,
) -> None:
    """Serve objects over the APIs of S3 and GCS on this machine."""
    if root is not None and synthetic is not None:
        raise click.UsageError("--root and --synthetic both name the objects; give one of them")
    try:
        rules = [] if faults is None else FaultRule.from_json(json.load(faults))
        served = DevStore(
            faults=rules,
            objects=backend(root, synthetic),
            keys={key: secret},
            tls=server_tls(tls),
            **store,
        )
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(served, warm=warm, until_eof=until_eof))
    except (StreamrecError, OSError, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from None


def backend(root: Path | None, synthetic: Any) -> Objects:
    """Return the backend of a directory, of a file of recipes, or in memory."""
    if synthetic is not None:
        return SyntheticObjects.from_json(json.load(synthetic))
    return MemoryObjects() if root is None else DirectoryObjects(root)


def server_tls(path: str | None) -> ssl.SSLContext | None:
    """Return a server's TLS context with the certificate and key of a PEM file."""
    if path is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    check_file(path, "--tls")
    context.load_cert_chain(path)
    return context


async def serve(store: DevStore, *, warm: bool, until_eof: bool) -> None:
    """Run the store until a signal or, if asked, the end of standard input."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if until_eof:
        threading.Thread(target=end_at_eof, name="stdin", daemon=True).start()
    if warm:
        # Before listening: the first client would wait for the digests.
        await store.warm()
    async with store:
        click.echo(json.dumps({"endpoint": store.endpoint, "pid": os.getpid()}))
        # Whoever started this waits for the line, and standard output is a pipe.
        sys.stdout.flush()
        await stopping.wait()


def end_at_eof() -> None:
    """End the process at the end of standard input."""
    # Standard input ends with the process that holds its other end, however that process ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
