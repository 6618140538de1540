"""The trainer's side of its private engine process, which reads where the interpreter lock is free.

The process is started as ``engine_process PARENT FD STORE``, over one end of a socket pair; what
comes first over that brings memory in which payloads travel. The dataset's settings go to its
standard input: never to its arguments, which others can read. They may come later: meanwhile it
imports its libraries.

It serves that one connection and ends with it. It also watches the trainer itself, in case that is
killed while another process (a forked worker) still holds the socket. It is in a process group of
its own, so that the terminal's Ctrl-C reaches the trainer alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from typing import IO, TYPE_CHECKING, Self

from streamrec.config import DatasetSettings
from streamrec.config.arguments import place_text
from streamrec.config.lazy_settings import jsonable
from streamrec.errors import ConfigError, FeederLost
from streamrec.flow.child_process import child_command, child_environment
from streamrec.masking import printable
from streamrec.pipeline.batch.functions import SETTINGS
from streamrec.surroundings import hold_standard_descriptors, scratch_file, working_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.stores.base.protocol import ObjectInfo


PROCESS = "streamrec.feeder.engine.engine_process"
GOODBYE = 2.0
"""Seconds that a child gets to end by itself, before it is killed."""
SOCKET_BUFFER = 4 << 20
"""Bytes to ask for; the system's limit (``net.core.wmem_max``) may give less."""
PIPE_BYTES = 1 << 20
"""To ask for: a list of thousands of URLs waits there while the child imports, not the trainer."""
MOST_LISTED = 4096
"""The most objects that the child is told of, each in about 100 bytes."""
TAIL = 2000
"""Bytes of the child's standard error that an error shows."""

log = logging.getLogger("streamrec.engine")


class Engine:
    """The parent's side; made by ``start``."""

    def __init__(
        self, process: subprocess.Popen[bytes], sock: socket.socket, errors: IO[bytes]
    ) -> None:
        self._situation = _situation()
        self.process = process
        self.socket = sock
        """The parent's end of the connection, for a feed to own."""
        self._errors = errors
        self._finalizer = weakref.finalize(self, _end, process, sock, errors, os.getpid())

    def __repr__(self) -> str:
        code = self.process.returncode
        return f"<Engine {self.process.pid}{'' if code is None else f', {_outcome(code)}'}>"

    @classmethod
    def start(cls, order: bytes) -> Engine:
        """Start the process; it opens the dataset while the caller goes on.

        Args:
            order: The message of ``order_for``.

        Raises:
            ConfigError: No process can be started.
        """
        self = _ready() or cls.spawn()
        self._tell(order)
        return self

    @classmethod
    def spawn(cls, source: str = "") -> Self:
        """Start a process that imports its libraries and waits for its settings.

        Args:
            source: What will be read, or the beginning of its URL; empty: not known yet.

        Raises:
            ConfigError: None can be started.
        """
        scheme, separator, _ = source.partition("://")
        store = scheme + separator if separator else source and "/"
        # Else a socket of the pair could get one of the numbers that the child has for its streams.
        hold_standard_descriptors()
        resources = contextlib.ExitStack()
        try:
            ours, theirs = socket.socketpair()
            resources.enter_context(ours)
            with theirs:
                # A file and no pipe: nobody reads while the process runs, and it must never wait to
                # write.
                errors = resources.enter_context(scratch_file())
                # Of their end, which sends the batches; ours sends little.
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
                process = _spawn(theirs.fileno(), store, errors)
        except OSError as error:
            resources.close()
            raise ConfigError(
                f"cannot start {sys.executable!r} as the engine process: {error.strerror}; "
                'set engine="thread"'
            ) from None
        return cls(process, ours, errors)

    @property
    def fits(self) -> bool:
        """True if it runs, and would be started in the same way now."""
        return self.process.poll() is None and self._situation == _situation()

    def diagnosis(self) -> str | None:
        """Return why the process ended, with its last words; ``None`` if it has not."""
        try:
            code = self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            return None
        last_words = _tail(self._errors)
        last_words = f"; its last output:\n{last_words}" if last_words else ""
        return f"the engine process {self.process.pid} {_outcome(code)}{last_words}"

    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait for it, at most some seconds; again changes nothing.

        Args:
            at_once: It serves nobody yet: do not wait until it has imported its libraries.
        """
        if at_once and self._finalizer.alive:
            self.process.kill()
        self._finalizer()

    def _tell(self, order: bytes) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        try:
            with stdin:
                stdin.write(order)
        except OSError:
            reason = self.diagnosis() or "the engine process does not read its settings"
            self.close()
            raise FeederLost(reason) from None


_ahead: deque[Engine] = deque(maxlen=1)
"""A process that waits for a stream."""


def start_engine(source: str | os.PathLike[str] = "") -> None:
    """Start the engine process of the next stream ahead of need, while there is other work to do.

    The first batch of a plain ``for`` waits for the process to import its libraries, unless it has
    done so before. The process waits for a stream to take it, and ends with this process; only one
    such process waits at a time. A stream takes it if the environment variables and the working
    directory are still the same.

    Args:
        source: The source that will be read, or the beginning of its URL: its libraries are
            imported, too.

    Raises:
        ConfigError: No process can be started.
    """
    place = place_text(source)
    if not is_started_ahead():
        _ahead.append(Engine.spawn(place))


def is_started_ahead() -> bool:
    """Return True if a process waits for a stream."""
    return any(engine.fits for engine in tuple(_ahead))


def _ready() -> Engine | None:
    """Return the process that was started ahead, if there is one that fits."""
    with contextlib.suppress(IndexError):
        # Popped in one step: two threads that begin streams never get the same process.
        engine = _ahead.pop()
        if engine.fits:
            return engine
        engine.close()
    return None


def _situation() -> tuple[object, ...]:
    """Return everything that a process takes over from its parent when it is started."""
    return os.getpid(), sys.executable, dict(os.environ), working_directory()


def order_for(
    settings: DatasetSettings,
    objects: Sequence[ObjectInfo] = (),
    most_listed: int = MOST_LISTED,
    functions: str | None = None,
) -> bytes:
    """Return the message that tells the process what to read.

    Args:
        settings: Those of the dataset.
        objects: The shards that the caller has listed. The process takes them as they are, so that
            a shard that is written meanwhile changes no order; if they are more than most_listed,
            or none, it lists the source itself.
        most_listed: The most shards to send.
        functions: The user's functions as ``SentFunctions``
            has them; ``None``: there are none, or the settings name them.

    Raises:
        ConfigError: The settings cannot be sent to another process.
    """
    apart = {} if functions is None else dict.fromkeys(SETTINGS)
    # Nothing of those of a feeder's dataset, which say who may read.
    plain = {name: getattr(settings, name) for name in DatasetSettings.defaults} | apart
    are_few = 0 < len(objects) <= most_listed
    listed = [(o.url, o.size, o.etag, o.encoding) for o in objects] if are_few else None
    order = {"settings": plain, "functions": functions, "objects": listed, "path": _search_path()}
    try:
        return json.dumps(order, default=jsonable).encode()
    # One of pydantic's that says what cannot be serialized is a ValueError.
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the settings cannot be sent to an engine process: {error}; give plain values in "
            'storage_options, or set engine="thread"'
        ) from None


def _search_path() -> list[str]:
    """Return the places of modules; an empty one stands for the working directory."""
    directory = working_directory()
    here = [] if directory is None else [str(directory)]
    return [path for place in sys.path for path in ([place] if place else here)]


def _spawn(sock: int, store: str, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        child_command(PROCESS, os.getpid(), sock, store),
        stdin=subprocess.PIPE,
        stdout=errors,
        stderr=errors,
        pass_fds=[sock],
        env=child_environment(),
        # In a group of its own, so that the terminal's Ctrl-C reaches the trainer alone.
        process_group=0,
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError, AttributeError):  # where it cannot be had, writing may wait
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _end(
    process: subprocess.Popen[bytes], sock: socket.socket, errors: IO[bytes], owner: int
) -> None:
    """End the child; at ``close``, when the engine is forgotten, or at the interpreter's exit."""
    sock.close()
    stdin = process.stdin
    waits = stdin is not None and not stdin.closed
    if stdin is not None:
        # The end of its standard input tells a process that waits for settings that none will come.
        stdin.close()
    if os.getpid() != owner:  # a fork's copy: the process is not its own to end
        # Popen's own destructor would else warn of a process that nobody has waited for.
        process.returncode = 0
        errors.close()
        return
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that waits for its settings has nothing to tidy up, and is killed at once.
            process.wait(0 if waits else GOODBYE)
    finally:
        process.kill()  # does nothing where it has ended
        process.wait()
    last_words = _tail(errors)
    errors.close()
    if last_words:
        log.warning("the engine process %d said: %s", process.pid, printable(last_words))


def _tail(errors: IO[bytes]) -> str:
    # A child that lives writes at the same place of the file: reading leaves that at the end.
    end = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, end - TAIL))
    return errors.read().decode(errors="replace").strip()


def _outcome(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (by the system, for lack of memory?)" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
