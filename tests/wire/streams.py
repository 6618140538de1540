"""Hostile streams of bytes for either end: ``python -m tests.wire.streams --runs 1000000``.

Each is a course of messages that the peer could send, with some of them mutated, dropped, repeated
or swapped, and with bytes of no frame; it comes in pieces of any size. Headers are often sealed
again after a mutation, so that wrong lengths and kinds pass the checksum.
"""

from __future__ import annotations

import argparse
import random
import struct
import time

from streamrec.errors import RemoteProtocolError
from streamrec.kernel import crc32c
from streamrec.wire.frame import HEADER, PAYLOAD_CAP, TRAILER, Header, trailer
from streamrec.wire.messages import BatchMessage, Message, encode, kind_of
from streamrec.wire.protocol import MOST_REPLIES, Connection, Role, State
from tests.wire.support import FINAL, FROM_CLIENT, FROM_SERVER, HELLO, joined, pass_on

__all__ = ["run"]

METADATA = 16 << 20
FIRST = 64 << 10
"""The most bytes of metadata of any message, and of the first one."""
LENGTHS = (0, 1, 63, 64, 65, FIRST, FIRST + 1, METADATA, METADATA + 1, (1 << 32) - 1)
PAYLOADS = (*LENGTHS, PAYLOAD_CAP, PAYLOAD_CAP + 1, 1 << 63, (1 << 64) - 1)
PIECES = (1, 7, HEADER, 64, 1000, 1 << 20)


def framed(message: Message) -> bytes:
    """Return a message as bytes, whatever the state allows."""
    metadata = encode(message)
    payload = message.payload if isinstance(message, BatchMessage) else ()
    header = Header(kind_of(message), len(metadata), sum(buffer.nbytes for buffer in payload))
    head = header.pack() + metadata + bytes(header.padding)
    return head + joined(payload) + trailer(metadata, payload)


COURSES = {
    Role.SERVER: list(map(framed, FROM_CLIENT)),
    Role.CLIENT: [frame for frame in map(framed, [*FROM_SERVER, FINAL[0]]) if len(frame) < 4096],
}
"""What the peer of an end says, by the role of that end."""


def run(role: Role, runs: int, seed: int) -> int:
    """Give an end so many streams; return how many broke the protocol.

    Raises:
        AssertionError: An end took more memory than it may, or piled answers up.
    """
    rng = random.Random(seed)
    return sum(_is_refused(role, _stream(rng, role), rng) for _ in range(runs))


def _stream(rng: random.Random, role: Role) -> bytes:
    frames = list(COURSES[role])
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(frames))
        match rng.randrange(6):
            case 0:
                frames[place] = _resealed(rng, frames[place])
            case 1:
                frames[place] = _flipped(rng, frames[place])
            case 2:
                frames.insert(place, rng.choice(frames))
            case 3:
                frames.insert(place, rng.randbytes(rng.randrange(100)))
            case 4:
                frames[place] = frames[place][: rng.randrange(len(frames[place]) + 1)]
            case _:
                frames.insert(place, rng.choice(COURSES[role.peer]))
    return b"".join(frames)


def _resealed(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with other claims in its header, whose checksum is right."""
    if len(frame) < HEADER:
        return frame
    magic, version, kind, flags, metadata, payload = struct.unpack_from("<4sBBHIQ", frame)
    match rng.randrange(4):
        case 0:
            kind = rng.randrange(20)
        case 1:
            metadata = rng.choice(LENGTHS)
        case 2:
            payload = rng.choice(PAYLOADS)
        case _:
            return _rewritten(rng, frame, metadata, payload)
    fields = struct.pack("<4sBBHIQ", magic, version, kind, flags, metadata, payload)
    return fields + struct.pack("<I", crc32c(fields)) + frame[HEADER:]


def _rewritten(rng: random.Random, frame: bytes, metadata: int, payload: int) -> bytes:
    """Return a frame without a payload whose metadata differ, and whose checksums are right."""
    if payload or not metadata or len(frame) < HEADER + metadata:
        return frame
    content = _flipped(rng, frame[HEADER : HEADER + metadata])
    return frame[:HEADER] + content + trailer(content, ())


def _flipped(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


def _is_refused(role: Role, data: bytes, rng: random.Random) -> bool:
    machine = Connection(role)
    if role is Role.CLIENT:  # which speaks first
        pass_on(machine, Connection(Role.SERVER), HELLO)
    view, piece = memoryview(data), rng.choice(PIECES)
    try:
        while view:
            buffer = machine.get_buffer()
            assert 0 < len(buffer) <= _most(machine)
            count = min(len(buffer), len(view), piece)
            buffer[:count] = view[:count]
            machine.buffer_updated(count)
            view = view[count:]
            list(machine.events())
            _take_part(machine)
        machine.receive_eof()
    except RemoteProtocolError:
        return True
    return False


def _most(machine: Connection) -> int:
    """Return the most bytes that an end may have asked for now."""
    if machine.role is Role.SERVER:
        return (FIRST if machine.state is State.OPENING else METADATA) + 2 * TRAILER + HEADER
    return PAYLOAD_CAP + TRAILER


def _take_part(machine: Connection) -> None:
    """Answer as an honest end does: pings, and a client subscribes once it is welcome."""
    replies = machine.replies()
    assert sum(reply.nbytes for reply in replies) <= MOST_REPLIES * 64
    if machine.role is Role.CLIENT and machine.state is State.READY and not machine.error:
        for message in FROM_CLIENT[1:3]:
            if machine.state in (State.READY, State.STREAMING):
                machine.send(message)
    if machine.role is Role.SERVER and machine.state is State.GREETING:
        machine.send(FROM_SERVER[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.streams", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000, help="streams for each end [100000]")
    parser.add_argument("--seed", type=int, default=1, help="of the streams [1]")
    given = parser.parse_args()
    for role in Role:
        began = time.monotonic()
        refused = run(role, given.runs, given.seed)
        seconds = time.monotonic() - began
        print(f"{role.value}: {given.runs:,} streams, {refused:,} refused, {seconds:.0f} s")


if __name__ == "__main__":
    main()
