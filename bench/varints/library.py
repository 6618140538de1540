"""The decoders of varints.c and of the kernel: compiled, called, and held against each other."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.varints.lists import Lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Decoder", "Wrong", "check", "compiled"]

KERNEL = Path(__file__).parents[2] / "streamrec" / "kernel" / "c"
SOURCES = (Path(__file__).with_name("varints.c"), KERNEL / "packed.c", KERNEL / "packed_x86.c")
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
LONGEST = 10
"""Bytes of a varint."""


class Wrong(Exception):
    """A decoder gave other values than the plain one."""


@dataclass(frozen=True)
class Decoder:
    """One way."""

    name: str
    library: ctypes.CDLL
    number: int

    def decode(self, lists: Lists, out: npt.NDArray[np.int64]) -> int:
        """Fill ``out``; how many values there were, or less than 0: refused."""
        return int(
            self.library.decode_lists(
                self.number,
                lists.data.ctypes.data_as(ctypes.c_void_p),
                lists.offsets.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(len(lists.offsets) - 1),
                out.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(len(out)),
            )
        )

    def seconds(self, lists: Lists, out: npt.NDArray[np.int64], repeat: int) -> float:
        """Of one pass; the best of some."""
        best = float("inf")
        for _ in range(repeat):
            started = time.perf_counter()
            self.decode(lists, out)
            best = min(best, time.perf_counter() - started)
        return best


def compiled(directory: Path, compiler: str) -> tuple[list[Decoder], list[str]]:
    """Compile with the system's compiler.

    Args:
        directory: For the library.
        compiler: Its name or path.

    Returns:
        The decoders that this processor can run, the plain one first, and the names of the others.
    """
    target = directory / "varints.so"
    sources = map(str, SOURCES)
    subprocess.run([compiler, *FLAGS, f"-I{KERNEL}", "-o", str(target), *sources], check=True)
    library = ctypes.CDLL(str(target))
    library.way_name.restype = ctypes.c_char_p
    library.decode_lists.restype = ctypes.c_int64
    able, unable = [], []
    number = 0
    while (name := library.way_name(number)) is not None:
        if library.way_supported(number):
            able.append(Decoder(name.decode(), library, number))
        else:
            unable.append(name.decode())
        number += 1
    return able, unable


class Guarded:
    """Memory with an unreadable page on each side: who reads or writes beyond it, crashes.

    Args:
        nbytes: The most that will be asked for.
    """

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, (-(-nbytes // page) + 2) * page)
        self._all = np.frombuffer(self._map, np.uint8)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        begin = self._all.ctypes.data
        for guard in (begin, begin + len(self._map) - page):
            if protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, nbytes: int, *, at_end: bool) -> npt.NDArray[np.uint8]:
        """So many bytes just after the first guard, or just before the second."""
        page = mmap.PAGESIZE
        inner = self._all[page : len(self._map) - page]
        return inner[len(inner) - nbytes :] if at_end else inner[:nbytes]


def check(decoders: Sequence[Decoder], lists: int, seed: int = 0) -> int:
    """Hold all decoders against the plain one, on random lists between guard pages.

    Args:
        decoders: The plain one first.
        lists: How many random lists; three quarters are valid.
        seed: Of the lists.

    Returns:
        The number of values in valid lists.

    Raises:
        Wrong: A decoder differs.
    """
    random = Random(seed)
    memory, room = Guarded(1 << 14), Guarded(1 << 17)
    total = 0
    for number in range(lists):
        data = _valid(random) if number % 4 else _broken(random)
        plain = _decoded(decoders[0], data, memory, room, len(data))
        values = len(data) if plain is None else len(plain)
        total += 0 if plain is None else values
        for decoder in decoders[1:]:
            for capacity in {values, max(0, values - 1)}:
                _compare(decoder, decoders[0], data, memory, room, capacity)
    return total


def _compare(
    decoder: Decoder, plain: Decoder, data: bytes, memory: Guarded, room: Guarded, capacity: int
) -> None:
    expected = _decoded(plain, data, memory, room, capacity)
    found = _decoded(decoder, data, memory, room, capacity)
    if not np.array_equal(expected, found):
        raise Wrong(f"{decoder.name} gives {found!r} for {data.hex()}, not {expected!r}")


def _decoded(decoder: Decoder, data: bytes, memory: Guarded, room: Guarded, capacity: int) -> Any:
    """The values, the same at both ends of the memory; ``None``: refused."""
    results: list[Any] = []
    for at_end in (False, True):
        place = memory.place(len(data), at_end=at_end)
        place[:] = np.frombuffer(data, np.uint8)
        out = room.place(8 * capacity, at_end=at_end).view(np.int64)
        count = decoder.decode(Lists(place, np.array([0, len(data)], np.int64)), out)
        results.append(out[:count].copy() if count >= 0 else None)
    if not np.array_equal(results[0], results[1]):
        raise Wrong(f"{decoder.name} depends on where the list stands: {data.hex()}")
    return results[0]


def _valid(random: Random) -> bytes:
    """A list of any varints, some longer than need be; mostly of one length in stretches."""
    longest = random.randint(1, LONGEST)
    return b"".join(
        _varint(random, random.randint(1, longest)) for _ in range(random.choice((3, 30, 300)))
    )


def _varint(random: Random, length: int) -> bytes:
    data = bytearray(random.randbytes(length))
    return bytes([byte | 0x80 for byte in data[:-1]] + [data[-1] & 0x7F])


def _broken(random: Random) -> bytes:
    """A list that ends within a varint, or holds one of more than ten bytes."""
    valid = _valid(random)
    if random.random() < 0.5:
        return valid + bytes(random.randint(0x80, 0xFF) for _ in range(random.randint(1, 9)))
    return valid + _varint(random, random.randint(LONGEST + 1, 99)) + _valid(random)


def default_compiler() -> str:
    """The system's."""
    return os.environ.get("CC", "cc")
