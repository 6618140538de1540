"""The demo's other processes: the object store and the feeder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from streamrec.demo.plan import FEATURES
from streamrec.flow.child_process import ChildProcess

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.demo.plan import DemoPlan

KEY, SECRET = "demo", "demo-secret"
BUCKET = "demo"


def store(directory: Path, plan: DemoPlan) -> ChildProcess:
    """Start the loopback object store over the buckets in ``directory``."""
    options = {"root": directory / "buckets", "latency": plan.latency, "key": KEY, "secret": SECRET}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = directory / "store.log"
    return ChildProcess("store", ["streamrec.devstore", *arguments], log)


def feeder(directory: Path, plan: DemoPlan, endpoint: str) -> ChildProcess:
    """Start the daemon, ``streamrec serve``, over the shards in the store."""
    config = directory / "feeder.toml"
    config.write_text(_configuration(plan, endpoint))
    arguments = ["streamrec", "serve", str(config), "--json"]
    return ChildProcess("feeder", arguments, directory / "feeder.log")


def _configuration(plan: DemoPlan, endpoint: str) -> str:
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
