"""The target of ``streamrec bench``: a dataset by flags or from a feeder's file, or a feeder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamrec.errors import ConfigError
from streamrec.masking import masked, shown, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Target

BATCH_SIZE = 64
"""Records of a batch where nothing says how many."""
FEEDERS = ("tcp://", "tls://", "unix://")


def is_feeder(urls: Sequence[str]) -> bool:
    """Return whether the URLs are the address of a feeder.

    Raises:
        UsageError: They are one of a feeder, and more.
    """
    feeders = [url for url in urls if url.lower().startswith(FEEDERS)]
    if feeders and len(urls) > 1:
        raise click.UsageError(
            "one feeder is measured at a time; give its address alone (several hosts of one "
            "address have commas between)"
        )
    return bool(feeders)


def refuse_settings(changes: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    """Refuse settings of ``--set`` that another argument gives.

    Raises:
        UsageError: One of them is there.
    """
    for name in names:
        if name in changes:
            raise click.UsageError(f"--set {name}: {why}; leave this out")


def dataset_settings(
    urls: Sequence[str],
    config: Path | None,
    dataset: str | None,
    changes: Mapping[str, Any],
) -> DatasetSettings:
    """Return the settings of the dataset to measure.

    Args:
        urls: The shards; none: those of the configuration.
        config: A feeder's file.
        dataset: The name of a dataset in it; ``None``: its only one.
        changes: Settings that replace those of the file, or the defaults.

    Raises:
        ConfigError: Settings are wrong, or the file has no such dataset.
        UsageError: There is nothing to measure.
    """
    from streamrec.config import DatasetSettings, validate

    plain: dict[str, Any] = {"features": "infer", "batch_size": BATCH_SIZE}
    if config is not None:
        plain = {"batch_size": BATCH_SIZE, **_configured(config, dataset)}
    elif dataset is not None:
        raise click.UsageError("--dataset is the name of one in a feeder's file; add --config FILE")
    if urls:
        plain["source"] = urls[0] if len(urls) == 1 else list(urls)
    if "source" not in plain:
        raise click.UsageError(
            "there is nothing to measure; give URLs or --config, or simulate a bucket with "
            "`streamrec bench simulate`"
        )
    return validate(DatasetSettings, plain | dict(changes))


def _configured(config: Path, name: str | None) -> dict[str, Any]:
    """Return what a feeder's file sets for a dataset."""
    from streamrec.cli.configuration import load
    from streamrec.config import DatasetSettings

    datasets = load(str(config)).datasets
    if name is None and len(datasets) > 1:
        raise ConfigError(f"{config} has the datasets {', '.join(datasets)}; choose with --dataset")
    if name is None:
        (name,) = datasets
    if name not in datasets:
        raise ConfigError(f"{config} has no dataset {name!r}; it has {', '.join(datasets)}")
    settings = datasets[name]
    return {
        field: getattr(settings, field)
        for field in DatasetSettings.model_fields
        if field in settings.model_fields_set
    }


def target_of_dataset(settings: DatasetSettings, simulation: str | None) -> Target:
    """Return the description of a dataset, without secrets."""
    from streamrec.measure.figures import Target

    changed = settings.model_dump(
        mode="json", exclude_defaults=True, exclude={"source", "storage_options"}
    )
    return Target(
        kind="store" if simulation is None else "simulation",
        urls=[masked(url) for url in settings.urls],
        settings=shown(without_secrets(changed)),
        simulation=simulation,
    )


def feeder_route(
    address: str, changes: Mapping[str, Any], tls: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options for connecting to a feeder.

    Raises:
        ConfigError: The address is malformed, or the files of TLS do not fit it.
        UsageError: A setting is the feeder's own.
    """
    from streamrec.feeder.access.address import Address
    from streamrec.feeder.access.tls import tls_files

    if own := sorted(changes.keys() - {"batch_size"}):
        raise click.UsageError(
            f"{', '.join(own)}: a feeder's own file has these settings; leave --set out"
        )
    files = tls_files(tls or None, Address.parse_all(address)[0])
    return {"tls": files, "batch_size": changes.get("batch_size")}


def target_of_feeder(address: str) -> Target:
    """Return the description of a feeder."""
    from streamrec.measure.figures import Target

    return Target(kind="feeder", urls=[masked(address)])
