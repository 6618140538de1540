"""The private engine process: a feeder of one's own, where the trainer's interpreter lock is not.

The parent starts it as ``engine_process PARENT FD MEMORY HEAD_START STORE`` over
one end of a socket pair, and memory in which payloads travel; it writes the dataset's settings to
its standard input: never to its arguments, which others can read. It may do so later: meanwhile the
child imports what it will need. The child serves that one connection, and ends when it does. Should
the parent be killed while another process holds the socket too (a forked worker), the child still
notices: it watches the parent itself. Ctrl-C is the parent's business; the child, in a session of
its own, does not see it. Linux also has its scheduler share the cores between sessions before it
shares them between threads (sched(7), autogroup), so that a trainer's threads, however many, leave
the child its part.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import site
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from pydantic_core import PydanticSerializationError

from streamrec import kernel
from streamrec.config import DatasetSettings, validate
from streamrec.config.arguments import place_text
from streamrec.config.memory_budget import memory_budget
from streamrec.errors import ConfigError, FeederLost
from streamrec.feeder.client import CREDIT_BYTES, ENGINE_DATASET, BlockingFeed
from streamrec.feeder.server import DatasetHandle, Feeder, open_dataset
from streamrec.feeder.shared import Inbox, Outbox, created
from streamrec.feeder.watch import Deadlines
from streamrec.flow.cleanup import finish
from streamrec.kernel.choice import VARIABLE
from streamrec.masking import printable
from streamrec.pipeline.functions import SETTINGS, portable
from streamrec.plan.ranges import sent_bytes
from streamrec.stores.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.plan.position import Fingerprint

__all__ = ["Engine", "order_for", "serve", "start_engine"]

PROCESS = "streamrec.feeder.engine_process"
PATIENCE = 300.0
"""Seconds: a child that dies closes its socket, so this is only for one that hangs."""
FOR_EVER = 1e7
"""Seconds that the child waits for the parent, whatever that does; it dies with the parent anyway.
"""
GOODBYE = 2.0
"""Seconds that a child gets to end by itself, before it is killed."""
SOCKET_BUFFER = 4 << 20
"""Bytes to ask for; the system's limit (``net.core.wmem_max``) may give less."""
SHARED_CREDITS = 4
"""Shared memory is this many times what may be on its way: batches wait before, and the
trainer holds them after."""
ENVIRONMENT_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}
"""Variables that the child has unless the parent has others. NumPy's OpenBLAS would start a thread
for each core that spins for a while (70 ms of CPU time), and batches are decoded by several threads
anyway; pydantic would look through all installed packages for plugins, and import them."""
PIPE_BYTES = 1 << 20
"""To ask for: what the child is told while it imports waits there, and the trainer does not."""
MOST_TOLD = 4096
"""Objects that the child is told of, by about 100 bytes each."""
TAIL = 2000
"""Bytes of the child's standard error that an error shows."""

log = logging.getLogger("streamrec.engine")


class Engine:
    """The parent's side; made by :meth:`start`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        errors: IO[bytes],
        inbox: Inbox | None = None,
    ) -> None:
        self._situation = _situation()
        self.process = process
        self.socket = sock
        """The parent's end of the connection, for a feed to own."""
        self._inbox = inbox
        self._errors = errors
        self._finalizer = weakref.finalize(self, _end, process, sock, errors, os.getpid())

    def __repr__(self) -> str:
        code = self.process.returncode
        return f"<Engine {self.process.pid}{'' if code is None else f', {_outcome(code)}'}>"

    @classmethod
    def start(cls, settings: DatasetSettings) -> Engine:
        """Start the process; it opens the dataset while the caller goes on.

        Args:
            settings: Of the dataset.

        Raises:
            ConfigError: The settings cannot be sent to another process, or none can be started.
        """
        order = order_for(settings)
        self = _ready() or cls.spawn()
        self.hand_over(order)
        return self

    @classmethod
    def spawn(cls, source: str = "", head_start: float = 0.0) -> Self:
        """Start a process that waits for its settings; :meth:`hand_over` gives it them.

        Args:
            source: What will be read, or the beginning of its URL; empty: not known yet.
            head_start: Seconds that it leaves the cores to others, unless it has its settings
                before: then it imports its libraries.

        Raises:
            ConfigError: None can be started.
        """
        scheme, separator, _ = source.partition("://")
        store = scheme + separator if separator else source and "/"
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile(prefix="streamrec-engine-")  # noqa: SIM115 - ends with the engine
        try:
            with theirs, created(SHARED_CREDITS * sent_bytes(sys.maxsize)) as memory:
                _enlarge(theirs)
                inbox = None if memory is None else Inbox(memory)
                process = _spawn(theirs.fileno(), memory, head_start, store, errors)
        except OSError as error:
            ours.close()
            errors.close()
            raise ConfigError(
                f"cannot start {sys.executable!r} as the engine process: {error.strerror}; "
                'set engine="thread"'
            ) from None
        return cls(process, ours, errors, inbox)

    def hand_over(self, order: bytes) -> None:
        """Have a process that waits for its settings open the dataset.

        Args:
            order: Made by :func:`order_for`.

        Raises:
            FeederLost: It has ended.
        """
        stdin = self.process.stdin
        assert stdin is not None
        try:
            with stdin:
                stdin.write(order)
        except OSError:
            reason = self.diagnosis() or "the engine process does not read its settings"
            self.close()
            raise FeederLost(reason) from None

    @property
    def fits(self) -> bool:
        """Whether it runs, and would be started in the same way now."""
        return self.process.poll() is None and self._situation == _situation()

    def call(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int | None = None,
        fingerprint: Fingerprint | None = None,
        credit_bytes: int = CREDIT_BYTES,
    ) -> BlockingFeed:
        """Announce a subscription, once; the process ends with the feed.

        Arguments are those of :meth:`BlockingFeed.open`.
        """
        return BlockingFeed.call(
            self.socket,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            fingerprint=fingerprint,
            credit_bytes=credit_bytes,
            patience=PATIENCE,
            engine=self,
            inbox=self._inbox,
        )

    def diagnosis(self) -> str | None:
        """Why the process ended, with the end of its standard error; ``None`` if it has not."""
        try:
            code = self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            return None
        said = _tail(self._errors)
        said = f"; its last words:\n{said}" if said else ""
        return f"the engine process {self.process.pid} {_outcome(code)}{said}"

    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait for it, at most some seconds; again changes nothing.

        Args:
            at_once: It serves nobody yet: do not wait until it has imported its libraries.
        """
        if at_once and self._finalizer.alive:
            self.process.kill()
        self._finalizer()
        self._inbox = None  # what batches still view of it stays

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ahead: deque[Engine] = deque(maxlen=1)
"""A process that waits for a stream."""


def start_engine(source: str | os.PathLike[str] = "") -> None:
    """Start the engine process of the next stream ahead of need, while there is other work to do.

    The first batch of a plain ``for`` waits for the process to import its libraries, unless that is
    done by then. The process waits for a stream to take it, and ends with this one; while one waits
    there is no other. A stream takes it as long as the environment variables and the working
    directory are the same.

    Args:
        source: What will be read, or the beginning of its URL: the libraries for that are imported
            as well.

    Raises:
        ConfigError: No process can be started.
    """
    place = place_text(source)
    if not is_started_ahead():
        _ahead.append(Engine.spawn(place))


def is_started_ahead() -> bool:
    """Whether a process waits for a stream."""
    return any(engine.fits for engine in tuple(_ahead))


def _ready() -> Engine | None:
    """The process that was started ahead, if there is one that fits."""
    with contextlib.suppress(IndexError):
        engine = _ahead.pop()
        if engine.fits:
            return engine
        engine.close()
    return None


def _situation() -> tuple[object, ...]:
    """What a process takes over from its parent when it is started."""
    directory = None
    with contextlib.suppress(OSError):
        directory = Path.cwd()
    return os.getpid(), sys.executable, dict(os.environ), directory


def order_for(settings: DatasetSettings, objects: Sequence[ObjectInfo] | None = None) -> bytes:
    """What a process is told of the dataset: :meth:`Engine.hand_over`.

    Args:
        settings: Of the dataset.
        objects: What its source names, so that it is not listed once more. If they are more than
            MOST_TOLD, the process lists them itself.

    Raises:
        ConfigError: The settings cannot be sent to another process.
    """
    given = {name: getattr(settings, name) for name in SETTINGS}
    names = {name: portable(name, function) for name, function in given.items() if function}
    try:
        plain = settings.model_copy(update=names).model_dump(mode="json", warnings=False)
    except PydanticSerializationError as error:
        raise ConfigError(
            f"the settings cannot be sent to an engine process: {error}; give plain values in "
            'storage_options, or set engine="thread"'
        ) from None
    told = objects if objects and len(objects) <= MOST_TOLD else None
    return json.dumps(
        {
            "settings": plain,
            "shared": SHARED_CREDITS * sent_bytes(memory_budget(settings)),
            "path": [place or str(Path.cwd()) for place in sys.path],
            "objects": told and [(o.url, o.size, o.etag, o.encoding) for o in told],
        }
    ).encode()


def _spawn(
    sock: int, memory: int | None, head_start: float, store: str, errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    # -P: a `queue.py` in the working directory is not the standard library's.
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", PROCESS]
    shared = "" if memory is None else str(memory)
    process = subprocess.Popen(
        [*command, str(os.getpid()), str(sock), shared, str(head_start), store],
        stdin=subprocess.PIPE,
        stdout=errors,
        stderr=errors,
        pass_fds=[sock] if memory is None else [sock, memory],
        env=_environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError, AttributeError):  # where it cannot be had, writing may wait
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _environment() -> dict[str, str]:
    """Ours, and where this very package is found, should it not be installed.

    The child runs the kernel that runs here: what is to be said about that has been said.
    """
    environment = {**ENVIRONMENT_DEFAULTS, **os.environ, VARIABLE: kernel.implementation}
    root = str(Path(__file__).parents[2])
    if root not in site.getsitepackages() and root != site.getusersitepackages():
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _enlarge(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)


def _end(
    process: subprocess.Popen[bytes], sock: socket.socket, errors: IO[bytes], owner: int
) -> None:
    """End the child; at ``close``, when the engine is forgotten, or at the interpreter's exit."""
    sock.close()
    stdin = process.stdin
    waits = stdin is not None and not stdin.closed
    if stdin is not None:
        stdin.close()
    if os.getpid() != owner:  # a fork's copy: the process is not its own to end
        process.returncode = 0
        errors.close()
        return
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if waits else GOODBYE)
    finally:
        process.kill()  # does nothing where it has ended
        process.wait()
    said = _tail(errors)
    errors.close()
    if said:
        log.warning("the engine process %d said: %s", process.pid, printable(said))


def _tail(errors: IO[bytes]) -> str:
    end = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, end - TAIL))
    return errors.read().decode(errors="replace").strip()


def _outcome(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (by the system, for lack of memory?)" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"


# The child


async def serve(
    sock: socket.socket,
    settings: dict[str, Any],
    parent: int,
    memory: int | None = None,
    shared: int = 0,
    objects: Sequence[Sequence[Any]] | None = None,
) -> None:
    """Serve one connection, as long as it and the parent live.

    Args:
        sock: Connected.
        settings: Of the dataset, plain.
        parent: The parent's process id.
        memory: A descriptor of what is shared with it.
        shared: How many bytes of it are for use.
        objects: What the parent has found of the source, as the fields of ``ObjectInfo``.
    """
    opening = asyncio.ensure_future(_open(settings, objects))
    try:
        with _watching(parent):
            datasets = {ENGINE_DATASET: opening}
            outbox = None if memory is None else Outbox(memory, shared)
            endless = Deadlines(handshake=FOR_EVER, idle=FOR_EVER, linger=FOR_EVER)
            async with Feeder(datasets, deadlines=endless, outbox=outbox) as feeder:
                await feeder.serve_socket(sock)
    finally:
        await finish(_close(opening))


async def _close(opening: asyncio.Future[DatasetHandle]) -> None:
    """Close the dataset; where it cannot be opened, the client has been told."""
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await (await opening).aclose()


async def _open(settings: dict[str, Any], objects: Sequence[Sequence[Any]] | None) -> DatasetHandle:
    found = None if objects is None else [ObjectInfo(*fields) for fields in objects]
    return await open_dataset(validate(DatasetSettings, settings), found)


@contextlib.contextmanager
def _watching(parent: int) -> Any:
    """End this process when the parent ends, even where its sockets live on."""
    if os.getppid() != parent:
        _die()
    loop = asyncio.get_running_loop()
    try:
        fd = os.pidfd_open(parent)
    except (AttributeError, OSError):  # another system, or a sandbox
        task = loop.create_task(_poll_parent(parent))
        yield
        task.cancel()
        return
    loop.add_reader(fd, _die)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - no event says that a parent has died
        await asyncio.sleep(0.25)
    _die()


def _die() -> None:
    # Nobody is left to tell, and nothing on disk to tidy up.
    os._exit(1)
