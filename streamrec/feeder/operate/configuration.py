"""The daemon's configuration: checked beyond its types, shown without secrets, opened on trial."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError, StreamrecError
from streamrec.feeder.access.address import Address, check_exposure, host_and_port
from streamrec.formats.examples.descriptions import from_description, is_pair
from streamrec.formats.examples.features import parser_of
from streamrec.formats.examples.renaming import check_renames
from streamrec.masking import mask_urls, masked, without_secrets
from streamrec.pipeline.batch.functions import SETTINGS, Function
from streamrec.pipeline.dataset import Dataset
from streamrec.report.words import quantity
from streamrec.stores.base.source_text import expand, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.daemon import DaemonSettings, ServedSettings
    from streamrec.config.server_settings import ServerSettings

MOST_SHOWN = 3
"""Names of shards that are shown."""


def load(path: str) -> DaemonSettings:
    """Read the daemon's file and environment variables, and check all that can be without opening.

    Raises:
        ConfigError: Something is wrong; the message has a line for each fault.
    """
    return load_daemon(path, os.environ, faults)


def faults(
    server: ServerSettings | None, datasets: Mapping[str, ServedSettings], is_right: bool = True
) -> Iterator[str]:
    """Yield a sentence for each address, URL, feature and function that cannot be understood.

    Args:
        server: The settings of the daemon itself.
        datasets: The settings of the datasets.
        is_right: False where settings of the daemon were left out, because they are wrong. Who may
            read is then not known, so listening beyond this machine is not judged.
    """
    if server is not None:
        yield from _server_faults(server, datasets, is_right)
    for name, dataset in datasets.items():
        yield from (f"datasets.{name}: {fault}" for fault in _dataset_faults(dataset))


def _server_faults(
    server: ServerSettings, datasets: Mapping[str, ServedSettings], is_right: bool
) -> Iterator[str]:
    token_files = {name: one.tokens for name, one in datasets.items()} if is_right else None
    for where in server.listen:
        yield from _fault(_check_address, where, server, token_files)
    if server.tls is not None and not any(where.startswith("tls://") for where in server.listen):
        yield (
            "the setting 'server.tls': no address in server.listen begins with tls://, so nothing "
            "would be encrypted; write tls:// there, or leave tls out"
        )
    if server.status is not None:
        status_faults = _fault(host_and_port, server.status)
        yield from (f"the setting 'server.status': {fault}" for fault in status_faults)


def _check_address(
    where: str, server: ServerSettings, token_files: Mapping[str, Sequence[str]] | None
) -> None:
    place = Address.parse(where, listen=True)
    if token_files is not None:
        check_exposure(place, server, token_files)


def _dataset_faults(dataset: DatasetSettings) -> Iterator[str]:
    for url in dataset.urls:
        yield from _fault(_check_url, url)
    if isinstance(dataset.features, dict):
        faults = [*_feature_faults(dataset.features)]
        yield from faults or _fault(_check_renames, dataset.features, dataset.renames)
    for setting in SETTINGS:
        if (function := getattr(dataset, setting)) is not None:
            yield from _fault(Function, setting, function)


def _check_url(url: str) -> None:
    for one in expand(url):
        scheme_of(one)


def _feature_faults(features: dict[str, Any]) -> Iterator[str]:
    """Yield the fault of each spec; if there is none, that of all features together."""
    parts = {"": features} if not is_pair(features) else features
    # Each by itself first, so that every wrong one is told at once.
    specs = ({name: spec} for part in parts.values() for name, spec in _items(part))
    spec_faults = [fault for spec in specs for fault in _fault(from_description, spec)]
    yield from spec_faults or _fault(parser_of, features)


def _check_renames(features: dict[str, Any], renames: Mapping[str, Mapping[str, str]]) -> None:
    check_renames(parser_of(features).features, renames)


def _items(part: Any) -> Iterable[tuple[str, Any]]:
    return part.items() if isinstance(part, dict) else ()


def _fault(check: Callable[..., object], *arguments: Any) -> Iterator[str]:
    try:
        check(*arguments)
    except ConfigError as error:
        yield str(error)


def effective(settings: DaemonSettings) -> dict[str, Any]:
    """Return all settings, with the defaults, as plain data.

    Secrets are masked, and excluded values are counted, as they may name persons.
    """
    # Secrets of [server] are masked by pydantic's own type; options and URLs may hold others.
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for dataset in plain["datasets"].values():
        options = without_secrets(dataset["storage_options"])
        dataset["exclude"] = _without_values(dataset["exclude"])
        names = ("source", "index", "quarantine", "exclude")
        urls = {name: mask_urls(dataset[name]) for name in names}
        dataset.update(urls, storage_options=options)
    return plain


def _without_values(excluded: Any) -> Any:
    if not isinstance(excluded, dict):
        return excluded
    return {
        feature: values if isinstance(values, str) else quantity(len(values), "value", "values")
        for feature, values in excluded.items()
    }


async def survey(
    datasets: Mapping[str, DatasetSettings],
) -> dict[str, dict[str, Any] | StreamrecError]:
    """Open datasets as the daemon does, and close them.

    Returns:
        By name, the shards and the fingerprint for a single rank; or why it cannot be opened.
    """
    results = await asyncio.gather(*map(_look, datasets.values()))
    return dict(zip(datasets, results, strict=True))


async def _look(settings: DatasetSettings) -> dict[str, Any] | StreamrecError:
    try:
        dataset = await Dataset.open(settings)
        try:
            fingerprint = dataset.fingerprint(dataset.settings.batch_size, 1)
        finally:
            await dataset.aclose()
    except StreamrecError as error:
        return error
    return {
        "shards": len(dataset.shards),
        "bytes": dataset.stored_bytes,
        "first": [masked(url) for url in dataset.shards[:MOST_SHOWN]],
        "lanes": dataset.lanes,
        "fingerprint": fingerprint.to_dict(),
    }
