"""Taking over, while a daemon runs, what has changed in its configuration."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError
from streamrec.feeder.access.access import Access
from streamrec.feeder.access.address import Address, check_exposure
from streamrec.feeder.operate import log_format
from streamrec.flow.cleanup import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.daemon import DaemonSettings
    from streamrec.feeder.operate.daemon import Notifier
    from streamrec.feeder.server.datasets import ServedDatasets
    from streamrec.feeder.server.server import Feeder

ACCESS = frozenset({"tls", "token", "tokens"})
"""The settings of ``[server]`` that say who may read."""
RELOADED = ACCESS | {"log_level"}
"""The settings of ``[server]`` that take effect at once."""

log = logging.getLogger("streamrec.feeder")


@asynccontextmanager
async def reloading(
    load: Callable[[], DaemonSettings], feeder: Feeder, datasets: ServedDatasets, notifier: Notifier
) -> AsyncIterator[None]:
    """Reload on SIGHUP while the block runs, one time after the other.

    Args:
        load: Reads the configuration.
        feeder: The running feeder.
        datasets: Its datasets.
        notifier: Tells the service manager.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    async def obey() -> None:
        while True:
            await asked.wait()
            asked.clear()
            notifier.reloading()
            await _reload_file(load, feeder, datasets)
            notifier.ready()

    loop.add_signal_handler(signal.SIGHUP, asked.set)
    task = loop.create_task(obey())
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        await end(task)


async def _reload_file(
    load: Callable[[], DaemonSettings], feeder: Feeder, datasets: ServedDatasets
) -> None:
    """Read the configuration and take it over; a wrong one changes nothing."""
    try:
        settings = await asyncio.to_thread(load)  # it may import modules
    except ConfigError as error:
        log.error("nothing is reloaded: %s", error)  # noqa: TRY400 - the sentence says all
    except Exception:
        log.exception("nothing is reloaded")
    else:
        for sentence in await reload(feeder, datasets, settings):
            log.info("reload: %s", sentence)
        feeder.pass_on("reload")


async def reload(feeder: Feeder, datasets: ServedDatasets, settings: DaemonSettings) -> list[str]:
    """Take over what can be from new settings.

    Args:
        feeder: The running feeder.
        datasets: Its datasets.
        settings: The new settings.

    Returns:
        Sentences about what was done, and about what needs a restart.
    """
    if feeder.draining:
        return ["the feeder is draining and takes over nothing"]
    # A dataset that has left the file is still served, to those who may read it.
    own = {**feeder.access.own, **{name: one.tokens for name, one in settings.datasets.items()}}
    sentences = [*reload_server(feeder, settings.server)]
    sentences += await reload_access(feeder, settings.server, own)
    sentences += _reload_datasets(feeder, datasets, settings)
    return sentences or ["nothing has changed"]


def reload_server(feeder: Feeder, new: DaemonSettings.Server) -> Iterator[str]:
    """Take over what can be from new settings of ``[server]``, and yield sentences about it."""
    old = feeder.settings
    changed = {name for name in type(new).model_fields if getattr(old, name) != getattr(new, name)}
    for name in sorted(changed - RELOADED):
        yield f"server.{name} has changed, which needs a restart"
    if "log_level" in changed:
        log_format.set_level(new.log_level)
        yield f"the log level is {new.log_level}"
        feeder.settings = feeder.settings.model_copy(update={"log_level": new.log_level})


async def reload_access(
    feeder: Feeder, new: DaemonSettings.Server, own: Mapping[str, Sequence[str]]
) -> list[str]:
    """Take over certificates and tokens, all of them or none, with what their files hold now.

    Args:
        feeder: The running feeder.
        new: The new settings of ``[server]``.
        own: By name, the files of tokens of each dataset.

    Returns:
        Sentences about what was done.
    """
    before = feeder.access
    server = feeder.settings.model_copy(update={name: getattr(new, name) for name in ACCESS})
    try:
        # The feeder still listens where it did, wherever the new file says.
        for where in server.listen:
            check_exposure(Address.parse(where, listen=True), server, own)
        feeder.access = await asyncio.to_thread(Access, server, own)
    except ConfigError as error:
        return [f"certificates and tokens stay as they were: {error}"]
    feeder.settings = server
    sentences = []
    if feeder.access.tokens != before.tokens:
        sentences.append("the tokens have changed, for new clients")
    if feeder.access.certificates != before.certificates:
        sentences.append("the certificates have changed, for new clients")
    return sentences


def _without_tokens(dataset: DatasetSettings) -> DatasetSettings:
    return dataset.model_copy(update={"tokens": []})


def _reload_datasets(
    feeder: Feeder, datasets: ServedDatasets, settings: DaemonSettings
) -> Iterator[str]:
    for name, dataset in settings.datasets.items():
        if name not in datasets and name not in feeder.access.own:
            yield f"the dataset {name!r} is not added, because its tokens were not taken"
        elif name not in datasets:
            feeder.datasets[name] = datasets.add(name, dataset)
            yield f"the dataset {name!r} is added, and being opened"
        elif _without_tokens(dataset) != _without_tokens(datasets[name].settings):
            yield f"the dataset {name!r} has changed, which needs a restart"
    for name in sorted(datasets.keys() - settings.datasets.keys()):
        yield f"the dataset {name!r} is no longer in the file; it is served until a restart"
