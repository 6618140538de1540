"""The demo's other processes: the object store and the feeder.

Each ends when its standard input does, so none outlives the demo, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streamrec.demo.plan import FEATURES
from streamrec.errors import StreamrecError

if TYPE_CHECKING:
    from streamrec.demo.plan import Plan

__all__ = ["Child", "feeder", "store"]

START = 30.0
"""The most seconds until a process is ready; it takes about one."""
GOODBYE = 5.0
"""The most seconds until a process has ended by itself."""
TAIL = 2000
"""The bytes of a process's log that an error shows."""
KEY, SECRET = "demo", "demo-secret"
BUCKET = "demo"


class Child:
    """A process of streamrec's, which prints its addresses as one line of JSON.

    Args:
        name: The name for errors.
        arguments: The arguments of ``python -m``.
        log: The file for its standard error.
    """

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[2],  # where this very package is found
                process_group=0,  # Ctrl-C is the demo's business
            )

    def ready(self) -> dict[str, Any]:
        """Wait until it has printed its addresses, and return them.

        Raises:
            StreamrecError: It ended, printed nothing in time, or has no data.
        """
        assert self.process.stdout is not None
        timer = threading.Timer(START, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            said = self._log.read_bytes()[-TAIL:].decode(errors="replace").strip()
            raise StreamrecError(f"the {self.name} process did not start: {said or 'no reason'}")
        answer: dict[str, Any] = json.loads(line)
        for why in answer.get("failing", {}).values():
            raise StreamrecError(f"the {self.name} process did not start: {why}")
        return answer

    def close(self) -> None:
        """End the process and wait for it."""
        pipes = (self.process.stdin, self.process.stdout)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GOODBYE)
        finally:
            self.process.kill()  # does nothing where it has ended
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def store(directory: Path, plan: Plan) -> Child:
    """Start the loopback object store over the buckets in ``directory``."""
    options = {"root": directory / "buckets", "latency": plan.latency, "key": KEY, "secret": SECRET}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = directory / "store.log"
    return Child("store", ["streamrec.devstore", *arguments, "--until-eof"], log)


def feeder(directory: Path, plan: Plan, endpoint: str) -> Child:
    """Start the daemon, ``streamrec serve``, over the shards in the store."""
    config = directory / "feeder.toml"
    config.write_text(_configuration(plan, endpoint))
    arguments = ["streamrec", "serve", str(config), "--until-eof", "--json"]
    return Child("feeder", arguments, directory / "feeder.log")


def _configuration(plan: Plan, endpoint: str) -> str:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint}
    features = [_table(f"datasets.pictures.features.{name}", FEATURES[name]) for name in FEATURES]
    dataset = {
        "source": f"s3://{BUCKET}/pictures-*.tfrecord",
        "batch_size": plan.batch_size,
        "shuffle": True,
        "shuffle_window": plan.shuffle_window,
        "lanes": plan.lanes,
        "epochs": plan.epochs,
        "steps_per_epoch": plan.steps_per_epoch,
    }
    server = {"listen": ["tcp://127.0.0.1:0"], "status": "127.0.0.1:0"}
    tables = [
        _table("server", server),
        _table("datasets.pictures", dataset),
        _table("datasets.pictures.storage_options", options),
        *features,
    ]
    return "\n".join(tables)


def _table(name: str, values: dict[str, Any]) -> str:
    """Return a table of TOML; these kinds of values look the same in JSON."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    return f"[{name}]\n{''.join(lines)}"
