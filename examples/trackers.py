"""Report what a stream does to a tracker of experiments.

``python examples/trackers.py tensorboard runs``

It writes some shards into a temporary directory, and reads them. The other trackers are ``wandb``
and ``mlflow``, each of which needs its package, and ``json``, a file of lines. All write into the
given directory, and none needs a server or an account.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES = {"id": sr.FixedLenFeature((), "int64")}


@contextmanager
def tensorboard(directory: Path) -> Iterator[Any]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory)) as writer:
        yield writer


@contextmanager
def wandb(directory: Path) -> Iterator[Any]:
    import wandb

    with wandb.init(mode="offline", dir=str(directory)) as run:
        yield run


@contextmanager
def mlflow(directory: Path) -> Iterator[Any]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
    with mlflow.start_run():
        yield mlflow


@contextmanager
def json(directory: Path) -> Iterator[Any]:
    import json

    with (directory / "reports.jsonl").open("w") as lines:
        yield lambda step, values: print(json.dumps({"step": step, **values}), file=lines)


TRACKERS = {one.__name__: one for one in (tensorboard, wandb, mlflow, json)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Report on a stream to a tracker of experiments.")
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("directory", type=Path, help="a directory to write into")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder:
        with sr.ShardedWriter(f"{folder}/train.tfrecord", shards=4) as writer:
            for number in range(10_000):
                writer.write({"id": number})
        with (
            TRACKERS[given.tracker](given.directory.absolute()) as tracker,
            sr.open(f"{folder}/train-*.tfrecord", FEATURES, batch_size=100) as stream,
        ):
            stream.report_to(tracker, every="1s")
            for _ in stream:
                pass  # a step of training
            print(f"reported to {given.tracker} up to step {stream.statistics()['step']}")


if __name__ == "__main__":
    main()
