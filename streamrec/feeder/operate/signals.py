"""The signals that a running daemon obeys, and its messages to the service manager.

SIGHUP asks it to take over a changed configuration, SIGUSR1 to dump where it stands.
"""

from __future__ import annotations

import asyncio
import json
import linecache
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError
from streamrec.feeder.access.access import Access
from streamrec.feeder.access.address import Address, check_exposure
from streamrec.feeder.operate import log_format
from streamrec.flow.cleanup import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from streamrec.config import DatasetSettings
    from streamrec.config.daemon import DaemonSettings
    from streamrec.config.server_settings import ServerSettings
    from streamrec.feeder.server.datasets import ServedDatasets
    from streamrec.feeder.server.server import Feeder


LOOK_EVERY = 5.0
"""Seconds between two looks at the daemon's state, for STATUS."""

log = logging.getLogger("streamrec.feeder")


class Notifier:
    """Sends messages to the service manager, as ``sd_notify(3)`` has them.

    Args:
        address: The socket's path; one that begins with ``@`` is in the abstract namespace.
            ``None``: there is nobody to tell.
        watchdog: Seconds in which a sign of life is expected; ``None``: none is.
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address and address[0] == "@" else address
        self._interval = LOOK_EVERY if watchdog is None else min(LOOK_EVERY, watchdog / 2)
        self._has_watchdog = watchdog is not None
        self._status = ""

    @classmethod
    def of(cls, variables: Mapping[str, str] | None = None) -> Self:
        """Return the notifier that a service manager's variables ask for."""
        variables = os.environ if variables is None else variables
        address = variables.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        # The variables are inherited: a child of the service's main process is not watched.
        for_us = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = variables.get("WATCHDOG_USEC", "")
        is_asked = for_us and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if is_asked else None)

    def ready(self) -> None:
        """Say that the daemon serves, or serves again after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Say that the configuration is read anew; :meth:`ready` says that this is done."""
        # sd_notify(3) asks for the time along with it.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the daemon drains."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Show a line about the daemon in ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text.replace(chr(10), ' ')}")

    @asynccontextmanager
    async def reporting(self, state: Callable[[], str]) -> AsyncIterator[None]:
        """Send the state when it changes, and signs of life, while the block runs.

        They come from the event loop: when that hangs, they do not.
        """
        if self._address is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._report(state))
        try:
            yield
        finally:
            await end(task)

    async def _report(self, state: Callable[[], str]) -> None:
        while True:
            self.status(state())
            if self._has_watchdog:
                self._send("WATCHDOG=1")
            await asyncio.sleep(self._interval)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                # A service manager that does not read must not hold up the loop.
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("cannot tell the service manager %s: %s", lines[0], error)


MOST_NAMES = 5
"""Names of tasks that are shown, of those that stand at the same place."""


def dump(feeder: Feeder) -> list[str]:
    """Return texts about the feeder, its tasks and the process' threads.

    Tasks that stand at the same place are shown as one. The texts have places in the source alone:
    no values, so no secrets.
    """
    return [_state(feeder), *_tasks(), *_threads()]


def log_dump(feeder: Feeder) -> None:
    """Log the dump, a record for each of its texts."""
    for text in dump(feeder):
        log.info("%s", text, extra={"unlimited": True})


@contextmanager
def dumping(feeder: Feeder) -> Iterator[None]:
    """Log the dump on SIGUSR1 while the block runs; workers log their own."""

    def dump_all() -> None:
        log_dump(feeder)
        feeder.pass_on("dump")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, dump_all)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def _state(feeder: Feeder) -> str:
    return f"{feeder!r}; statistics: {json.dumps(feeder.snapshot())}"


def _tasks() -> Iterator[str]:
    """Yield a text for each place where tasks stand, the most frequent first."""
    by_place: dict[str, list[str]] = {}
    for task in asyncio.all_tasks():
        by_place.setdefault(_stack(_awaiting(task.get_coro())), []).append(task.get_name())
    for place, names in sorted(by_place.items(), key=lambda found: -len(found[1])):
        listed = ", ".join(sorted(names)[:MOST_NAMES]) + (
            ", ..." if len(names) > MOST_NAMES else ""
        )
        yield f"{len(names)} tasks ({listed}) at:\n{place}"


def _awaiting(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of all that it awaits, the innermost last.

    ``Task.get_stack`` ends at the first, if the task is suspended.
    """
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), "")
        frame = getattr(awaited, f"{kind}_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():  # noqa: SLF001 - its documented name
        frames = (inner for inner, _ in traceback.walk_stack(frame))
        yield f"thread {names.get(number, number)} at:\n{_stack(reversed(list(frames)))}"


def _stack(frames: Iterable[FrameType]) -> str:
    return "\n".join(map(_place, frames)) or "  (it has not begun, or has ended)"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}: {line}"


ACCESS = frozenset({"tls", "token", "tokens"})
"""The settings of ``[server]`` that say who may read."""
RELOADED = ACCESS | {"log_level"}
"""The settings of ``[server]`` that take effect at once."""


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
            # Before it is read: a signal that comes meanwhile has it read once more.
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
        log.error("nothing was reloaded: %s", error)  # noqa: TRY400 - the sentence says all
    except Exception:
        log.exception("nothing was reloaded")
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
        return ["the feeder is draining, so it reloads nothing"]
    # A dataset that has left the file is still served, to those who may read it.
    token_files = {
        **feeder.access.own,
        **{name: one.tokens for name, one in settings.datasets.items()},
    }
    sentences = [*reload_server(feeder, settings.server)]
    sentences += await reload_access(feeder, settings.server, token_files)
    sentences += _reload_datasets(feeder, datasets, settings)
    return sentences or ["nothing has changed"]


def reload_server(feeder: Feeder, new: ServerSettings) -> Iterator[str]:
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
    feeder: Feeder, new: ServerSettings, token_files: Mapping[str, Sequence[str]]
) -> list[str]:
    """Take over certificates and tokens, all of them or none, with what their files hold now.

    Args:
        feeder: The running feeder.
        new: The new settings of ``[server]``.
        token_files: By name, the files of tokens of each dataset.

    Returns:
        Sentences about what was done.
    """
    before = feeder.access
    server = feeder.settings.model_copy(update={name: getattr(new, name) for name in ACCESS})
    try:
        # The feeder still listens where it did, wherever the new file says.
        for where in server.listen:
            check_exposure(Address.parse(where, listen=True), server, token_files)
        # All of it anew: where one file is wrong, nothing of the old is replaced.
        feeder.access = await asyncio.to_thread(Access, server, token_files)
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
            yield f"the dataset {name!r} is not added, because its tokens were refused"
        elif name not in datasets:
            feeder.datasets[name] = datasets.add(name, dataset)
            yield f"the dataset {name!r} is added, and being opened"
        elif _without_tokens(dataset) != _without_tokens(datasets[name].settings):
            yield f"the dataset {name!r} has changed, which needs a restart"
    for name in sorted(datasets.keys() - settings.datasets.keys()):
        yield f"the dataset {name!r} is no longer in the file; it is served until a restart"
