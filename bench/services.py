"""The processes on the other side: the loopback object store, and the feeder daemon."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from streamrec.demo.processes import Child

__all__ = ["STORE_KEYS", "feeder", "store"]

STORE_KEYS = {"key": "bench", "secret": "bench-secret"}


@contextlib.contextmanager
def store(root: Path, *, latency: float, bandwidth: float) -> Iterator[tuple[str, int]]:
    """Serve the datasets below ``root``; gives the endpoint and the process's id.

    It has read every shard once before it listens, so that all of them are in the page cache.

    Args:
        root: Its directories are buckets.
        latency: Seconds to the first byte of each answer.
        bandwidth: Bytes a second for each connection.
    """
    options = {"root": root, "latency": latency, "bandwidth": bandwidth, **STORE_KEYS}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "store.log")
        command = ["streamrec.devstore", *arguments, "--warm", "--until-eof"]
        with Child("store", command, log) as child:
            yield child.ready()["endpoint"], child.process.pid


@contextlib.contextmanager
def feeder(name: str, dataset: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Serve one dataset; gives its address and the process's id.

    Args:
        name: Of the dataset.
        dataset: Its settings, plain; mappings in it become tables.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "feeder.toml")
        server = {"listen": ["tcp://127.0.0.1:0"], "status": "127.0.0.1:0"}
        config.write_text(toml({"server": server, "datasets": {name: dataset}}))
        command = ["streamrec", "serve", str(config), "--until-eof", "--json"]
        with Child("feeder", command, Path(directory, "feeder.log")) as child:
            yield f"{child.ready()['listen'][0]}/{name}", child.process.pid


def toml(tables: Mapping[str, Any], above: str = "") -> str:
    """Tables of plain values; of these kinds JSON writes the same as TOML."""
    text = ""
    for name, value in tables.items():
        path = f"{above}{name}"
        plain = {key: one for key, one in value.items() if not isinstance(one, Mapping)}
        deeper = {key: one for key, one in value.items() if isinstance(one, Mapping)}
        lines = [f"{key} = {json.dumps(one)}\n" for key, one in plain.items()]
        text += f"[{path}]\n{''.join(lines)}{toml(deeper, f'{path}.')}"
    return text
