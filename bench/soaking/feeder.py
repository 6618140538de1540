"""A feeder that reports what it holds: ``python -m bench.soaking.feeder SETTINGS``.

It prints one line of JSON with its port, and another for each line that it reads from its standard
input, and ends with that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from bench.usage import resident_megabytes
from streamrec.config import DatasetSettings, validate
from streamrec.feeder.client.client import ENGINE_DATASET
from streamrec.feeder.server.server import Feeder
from streamrec.flow.bridge import new_event_loop
from streamrec.pipeline.dataset import Dataset


def report(feeder: Feeder) -> dict[str, Any]:
    """Return what this process holds now."""
    return {
        "connections": feeder.admission.clients,
        "megabytes": resident_megabytes(os.getpid()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }


async def serve(settings: dict[str, Any]) -> None:
    dataset = await Dataset.open(validate(DatasetSettings, settings))
    async with Feeder({ENGINE_DATASET: dataset}) as feeder:
        address = await feeder.listen("tcp://127.0.0.1:0")
        print(json.dumps({"port": address.port}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(report(feeder)), flush=True)
    await dataset.aclose()


def main() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
