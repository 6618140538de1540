"""The targets of benchmarks: a dataset, by its settings or from a feeder's file, or a feeder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError
from streamrec.feeder.operate.configuration import load
from streamrec.masking import mask_urls, masked, without_secrets
from streamrec.measure.figures import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BATCH_SIZE = 64
"""Records of a batch where nothing says how many."""


def dataset_settings(
    urls: Sequence[str],
    config: Path | None = None,
    dataset: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> DatasetSettings:
    """Return the settings of the dataset to measure.

    Args:
        urls: The shards; none: those of the configuration.
        config: A feeder's file.
        dataset: The name of a dataset in it; ``None``: its only one.
        changes: Settings that replace those of the file, or the defaults.

    Raises:
        ConfigError: Settings are wrong, or the file has no such dataset.
    """
    plain: dict[str, Any] = {"features": "infer", "batch_size": BATCH_SIZE}
    if config is not None:
        # A file's own batch size goes before the default.
        plain = {"batch_size": BATCH_SIZE, **settings_in(config, dataset)}
    if urls:
        plain["source"] = urls[0] if len(urls) == 1 else list(urls)
    return validate(DatasetSettings, plain | dict(changes or {}))


def settings_in(config: Path, name: str | None) -> dict[str, Any]:
    """Return what a feeder's file sets for a dataset."""
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
        for field, default in DatasetSettings.defaults.items()
        if getattr(settings, field) != default
    }


def target_of_dataset(settings: DatasetSettings, simulation: str | None) -> Target:
    """Return the description of a dataset, without secrets."""
    # Options of a store may hold keys; the source is told as ``urls``.
    changed = settings.model_dump(
        mode="json", exclude_defaults=True, exclude={"source", "storage_options"}
    )
    return Target(
        kind="store" if simulation is None else "simulation",
        urls=[masked(url) for url in settings.urls],
        settings=mask_urls(without_secrets(changed)),
        simulation=simulation,
    )


def target_of_feeder(address: str) -> Target:
    """Return the description of a feeder."""
    return Target(kind="feeder", urls=[masked(address)])
