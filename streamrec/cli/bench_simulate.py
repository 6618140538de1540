"""``streamrec bench simulate``: the measurement of a bucket that does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrec.cli.bench_measuring import (
    measure,
    measuring_options,
    refuse_dataset_alone,
    refuse_settings,
)
from streamrec.cli.completion import local_files
from streamrec.cli.options import size_value

SHARDS = 64


@click.command()
@click.argument("network")
@click.argument(
    "shard",
    required=False,
    type=click.Path(dir_okay=False, path_type=Path),
    shell_complete=local_files,
)
@click.option(
    "--shards",
    type=click.IntRange(1),
    default=SHARDS,
    show_default=True,
    help="Shards of the simulated bucket.",
)
@click.option(
    "--shard-size",
    metavar="BYTES",
    callback=size_value,
    default="128MB",
    show_default=True,
    help="The size of each of them.",
)
@measuring_options
def simulate(
    *,
    network: str,
    shard: Path | None,
    shards: int,
    shard_size: int,
    config: Path | None,
    dataset: str | None,
    changes: dict[str, Any],
    world_size: int,
    **how: Any,
) -> None:
    """Measure a simulated bucket as `bench` measures a real one.

    NETWORK is a text such as latency=50ms,jitter=30%,bandwidth=60MB/s. The bucket holds copies of
    SHARD, a local file; without it, pictures of about 100 KB with labels.
    """
    from streamrec.measure.simulation import simulated
    from streamrec.measure.targets import dataset_settings, target_of_dataset

    refuse_dataset_alone(config, dataset)
    refuse_settings(changes, ("source", "storage_options"), "a simulated bucket has its own")
    with simulated(network, shards, shard_size, template=shard) as store:
        changes = {"storage_options": store.storage_options, **changes}
        settings = dataset_settings([store.source], config, dataset, changes)
        measure(
            target_of_dataset(settings, network),
            lambda one: one.measure_dataset(settings, world_size=world_size),
            **how,
        )
