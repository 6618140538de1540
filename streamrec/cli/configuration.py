"""The daemon's configuration, checked beyond its types, and shown without its secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.feeder.address import Address, check_exposure, host_and_port
from streamrec.formats.sequences import parser_of
from streamrec.pipeline.functions import Functions
from streamrec.stores.base import display_url
from streamrec.stores.sources import expand, scheme_of

if TYPE_CHECKING:
    from streamrec.config import DaemonSettings, DatasetSettings

__all__ = ["HIDDEN", "check", "effective"]

HIDDEN = "**********"
_SECRET = re.compile(
    r"secret|token|passw|credential|private|signature|\bkey\b|_key\b", re.IGNORECASE
)


def check(settings: DaemonSettings) -> None:
    """See that addresses, URLs, features and functions can be understood; nothing is opened.

    Raises:
        ConfigError: One cannot, the error names the dataset; or an address shows too much.
    """
    server = settings.server
    for where in server.listen:
        place = Address.parse(where, listen=True)
        check_exposure(place, token=bool(server.token), insecure=server.insecure)
    if server.status is not None:
        host_and_port(server.status)
    for name, dataset in settings.datasets.items():
        try:
            _check_dataset(dataset)
        except ConfigError as error:
            raise ConfigError(f"datasets.{name}: {error}") from None


def _check_dataset(dataset: DatasetSettings) -> None:
    for url in (url for source in dataset.components.values() for url in expand(source)):
        scheme_of(url)
    if isinstance(dataset.features, dict):
        parser_of(dataset.features)
    Functions.of(dataset)


def effective(settings: DaemonSettings) -> dict[str, Any]:
    """All settings, defaults included, as plain data; secrets are masked."""
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for dataset in plain["datasets"].values():
        dataset["storage_options"] = _masked(dataset["storage_options"])
        dataset["source"] = _displayed(dataset["source"])
    return plain


def _displayed(source: Any) -> Any:
    """A source of settings, without credentials."""
    if isinstance(source, dict):
        return {name: _displayed(part) for name, part in source.items()}
    return display_url(source) if isinstance(source, str) else [display_url(u) for u in source]


def _masked(value: Any) -> Any:
    """The value without what its keys' names call secret, at every depth."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET.search(str(name)) and inner is not None else _masked(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return display_url(value) if isinstance(value, str) else value
