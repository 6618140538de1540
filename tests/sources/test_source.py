from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError, RecordTooLarge
from streamrec.sources.source import Memory, files_digest, files_of

if TYPE_CHECKING:
    from pathlib import Path


MIB = 1 << 20


def test_the_message_names_the_memory_that_is_enough(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    (file,) = files_of(str(tmp_path / "x"))
    memory = Memory(64 * MIB)
    memory.check(16 * MIB, memory.record, "row 7", file)
    with pytest.raises(RecordTooLarge) as caught:
        memory.check(16 * MIB + 1, memory.record, "row 7", file)
    assert caught.value.url == str(tmp_path / "x")
    assert "row 7 takes 16 MiB, and --memory allows 16 MiB for it" in str(caught.value)
    assert "give --memory 65MiB or more" in str(caught.value)
    enough = Memory(65 * MIB)
    enough.check(16 * MIB + 1, enough.record, "row 7", file)


def test_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text(name)
    a, b = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    assert list(map(str, files_of(a))) == [a]
    found = files_of(str(tmp_path), (".csv",))
    assert found == files_of(f"{tmp_path}/*.csv")
    assert list(map(str, found)) == [a, b]
    with pytest.raises(ConfigError, match="there is no such file"):
        files_of(f"{tmp_path}/*.tar")


def test_a_digest_follows_names_sizes_and_times(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("x")
    seen = {digest(file), digest(file.rename(other))}
    other.write_text("xy")
    seen.add(digest(other))
    os.utime(other, ns=(0, 0))
    assert len(seen | {digest(other)}) == 4


def digest(path: Path) -> str:
    return files_digest((file.name, file) for file in files_of(str(path)))
