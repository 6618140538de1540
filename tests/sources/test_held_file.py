from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamrec.sources.held_file import HeldFile

if TYPE_CHECKING:
    from pathlib import Path

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
DATA = bytes(range(100))


class Counted:
    """A source that counts the bytes that are read."""

    def __init__(self) -> None:
        self.file, self.bytes = pa.BufferReader(DATA), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read_buffer(self, size: int) -> Any:
        self.bytes += size
        return self.file.read_buffer(size)


def test_a_part_is_requested_once() -> None:
    source = Counted()
    held = HeldFile(source)
    held.hold(20, 30)
    assert source.bytes == 30
    held.seek(20)
    assert bytes(held.read(10)) == DATA[20:30]
    assert bytes(held.read_at(45, 5)) == DATA[45:50]
    assert held.tell() == 30
    assert bytes(held.read(20)) == DATA[30:50]
    assert source.bytes == 30
    assert bytes(held.read(5)) == DATA[50:55]
    assert held.seek(-1, 2) == 99
    assert bytes(held.read(9)) == DATA[99:]
    assert source.bytes == 44


@pytest.mark.parametrize("part", [(0, 0), (0, 100), (30, 20)])
def test_arrow_reads_it_as_any_file(part: tuple[int, int], tmp_path: Path) -> None:
    held = HeldFile(pa.BufferReader(DATA))
    held.hold(*part)
    with pa.PythonFile(held, "r") as file:
        assert file.size() == len(DATA)
        file.seek(25)
        assert file.read(50) == DATA[25:75]
    assert held.closed
