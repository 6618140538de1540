"""A worker process as its supervisor sees it, and the channel between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError
from streamrec.flow.child_process import child_command, child_environment
from streamrec.wire.error_fields import from_fields, to_fields

if TYPE_CHECKING:
    from streamrec.errors import StreamrecError


LONGEST = 256 << 20
"""Bytes of a message: the names of many shards, or what many sessions have counted."""


class Link:
    """One end of the channel; made by :meth:`open`.

    Either end may send messages, and ask questions, each of which the other end answers once.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._questions = 0

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """Return the end that a connected socket is; it owns the socket."""
        sock.setblocking(False)
        # The limit is of a line: each message is one.
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=LONGEST))

    @property
    def unsent(self) -> int:
        """The number of bytes that the other end has not taken."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, **message: Any) -> None:
        """Send a message; where the other end is gone, nobody gets it."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message that is not an answer; ``None``: the other end is gone."""
        with contextlib.suppress(ConnectionError):
            # A process that is killed may leave the beginning of a line.
            while (line := await self._reader.readline()).endswith(b"\n"):
                message: dict[str, Any] = json.loads(line)
                if "answer" not in message:
                    return message
                self._take(message)
        return None

    def ask(self, **question: Any) -> asyncio.Future[Any]:
        """Ask a question; the future has the answer, or the error that is the answer."""
        self._questions += 1
        answer = asyncio.get_running_loop().create_future()
        self._asked[self._questions] = answer
        self.send(ask=self._questions, **question)
        return answer

    def answer(self, question: dict[str, Any], value: object) -> None:
        """Answer a question with a value, or with an error."""
        if isinstance(value, BaseException):
            self.send(answer=question["ask"], error=to_fields(value))
        else:
            self.send(answer=question["ask"], value=value)

    async def aclose(self) -> None:
        """Send what is left, and close the channel."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _take(self, message: dict[str, Any]) -> None:
        future = self._asked.pop(message["answer"])
        if future.cancelled():  # nobody waits for it any more
            return
        if "error" in message:
            error: StreamrecError = from_fields(message["error"])
            future.set_exception(error)
        else:
            future.set_result(message["value"])


PROCESS = "streamrec.feeder.operate.worker_process"
NUMBER_BYTES = 8
"""Bytes of the number of a connection, which go with its descriptor."""
SILENT = 2.0
"""Seconds without a message after which new clients go to other workers first: its event loop
stands still."""

log = logging.getLogger("streamrec.feeder")


class Worker:
    """A worker process: its two channels, its connections, and the memory that it has borrowed.

    One channel has messages, the other one descriptors of connections. Both end with either
    process, by whatever way that ends.

    Args:
        number: Its number among the daemon's workers, from 1 on; one that replaces it has the same.
        process: The process.
        link: The channel of messages.
        arrivals: The channel of descriptors.
    """

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], link: Link, arrivals: socket.socket
    ) -> None:
        self.number = number
        self.process = process
        self.link = link
        self.snapshot: dict[str, Any] | None = None
        """The last that it has said about itself."""
        self.is_ready = False
        """True once it serves."""
        self.connections: set[int] = set()
        """The numbers of its connections."""
        self.loans: list[int] = []
        """Bytes of each of its sessions."""
        self._arrivals = arrivals
        self._waiting: dict[int, tuple[socket.socket, bool]] = {}
        """Connections that are not handed over yet."""
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        """The loop's time at which the last message came."""

    def __repr__(self) -> str:
        return (
            f"<Worker {self.number}, process {self.process.pid}, "
            f"{len(self.connections)} connections>"
        )

    @classmethod
    async def start(cls, number: int) -> Self:
        """Start a process; it imports its libraries, and waits for its settings.

        Raises:
            ConfigError: It cannot be started.
        """
        with contextlib.ExitStack() as ours:
            try:
                link, theirs = socket.socketpair()
                ours.enter_context(link)
                with theirs:
                    # It keeps messages apart, and each has its descriptor.
                    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    arrivals, received = ours.enter_context(pair[0]), pair[1]
                    with received:
                        process = _spawn(theirs.fileno(), received.fileno())
            except OSError as error:
                raise ConfigError(
                    f"cannot start a worker process: {error.strerror}; set workers = 1"
                ) from None
            ours.pop_all()
        arrivals.setblocking(False)
        return cls(number, process, await Link.open(link), arrivals)

    @property
    def load(self) -> tuple[bool, bool, int]:
        """Say how much it has to do; of two workers the one with less gets the next client."""
        # Compared in this order: who serves, whose loop turns, who has the fewest connections.
        return not self.is_ready, self.silent_for > SILENT, len(self.connections)

    @property
    def silent_for(self) -> float:
        """Seconds since its last message: one that serves sends two in a second."""
        return self._loop.time() - self.heard_at

    def hand_over(self, number: int, sock: socket.socket, *, tls: bool = False) -> None:
        """Give it a connection, which then is its own; the order is kept.

        Args:
            number: The daemon's number of the connection.
            sock: The connection.
            tls: It came to an address of TLS, which the worker speaks.
        """
        self.connections.add(number)
        self._waiting[number] = sock, tls
        # Else the channel is full, its writer goes on by itself, and the order must be kept.
        if len(self._waiting) == 1:
            self._pass_on()

    def cut(self, number: int) -> None:
        """Have a connection closed at once, and count it as its own no longer."""
        self.connections.discard(number)
        if (waiting := self._waiting.pop(number, None)) is None:
            self.link.send(cut=number)
        else:
            waiting[0].close()

    async def end(self, patience: float = 0.0) -> None:
        """Wait for the process to end by itself, and kill it then.

        Args:
            patience: Seconds to wait.
        """
        self._loop.remove_writer(self._arrivals.fileno())
        self._arrivals.close()
        for sock, _ in self._waiting.values():
            sock.close()
        self._waiting.clear()
        await asyncio.to_thread(self._reap, patience)
        await self.link.aclose()

    def outcome(self) -> str:
        """Return how the process ended, in words."""
        code = self.process.returncode
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _reap(self, patience: float) -> None:
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _pass_on(self) -> None:
        """Hand over what waits, as much as the channel takes."""
        while self._waiting:
            number, (sock, tls) = next(iter(self._waiting.items()))
            try:
                # The number goes along, since a descriptor has another one in each process.
                message = number.to_bytes(NUMBER_BYTES, "little") + bytes([tls])
                socket.send_fds(self._arrivals, [message], [sock.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._arrivals.fileno(), self._pass_on)
                return
            except OSError as error:
                # It has just died, and all that is its own goes with it.
                log.warning("a client was lost on its way to a worker: %s", error.strerror)
            del self._waiting[number]
            sock.close()
        self._loop.remove_writer(self._arrivals.fileno())


def _spawn(link: int, arrivals: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        child_command(PROCESS, link, arrivals),
        stdin=subprocess.DEVNULL,
        pass_fds=[link, arrivals],
        env=child_environment(),
        process_group=0,
    )
