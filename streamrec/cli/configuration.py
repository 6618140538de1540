"""The daemon's configuration, checked beyond its types, and shown without its secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.feeder.address import Address, check_exposure, host_and_port
from streamrec.formats.examples.features import parser_of
from streamrec.masking import shown, without_secrets
from streamrec.pipeline.functions import Functions
from streamrec.stores.source_text import expand, scheme_of

if TYPE_CHECKING:
    from streamrec.config import DaemonSettings, DatasetSettings

__all__ = ["check", "effective"]


def check(settings: DaemonSettings) -> None:
    """Check that addresses, URLs, features and functions can be understood; open nothing.

    Raises:
        ConfigError: One cannot, and the error names the dataset; or an address is too exposed.
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
    """Return all settings, with the defaults, as plain data; secrets are masked."""
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for dataset in plain["datasets"].values():
        options = without_secrets(dataset["storage_options"])
        urls = {name: shown(dataset[name]) for name in ("source", "index", "quarantine")}
        dataset.update(urls, storage_options=options)
    return plain
