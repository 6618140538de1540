from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError, RecordTooLarge
from streamrec.sources.opening import KINDS
from streamrec.sources.source import Memory, Option, SourceKind, files_digest, files_of

if TYPE_CHECKING:
    from pathlib import Path


def open_here(place: str, *, width: int = 1) -> None: ...


def open_anywhere(place: str, *, storage_options: None = None) -> None: ...


def kind(opening: object = open_here) -> SourceKind:
    return SourceKind("k", opening, (".k", ".k.gz"), (Option(name="a_b", help=""),))  # type: ignore[arg-type]


def test_the_opening_tells_whether_a_store_is_read() -> None:
    assert not kind().is_stored
    assert kind(open_anywhere).is_stored
    assert not kind().is_function


def test_suffixes() -> None:
    assert kind().has_suffix("x", "y.k.gz")
    assert not kind().has_suffix("x.gz")
    assert not SourceKind("none", open_here).has_suffix("x")  # type: ignore[arg-type]


def test_options_of_other_kinds_are_refused_as_they_are_typed() -> None:
    every = [Option(name="a_b", help=""), Option(name="types", flag="type", help="")]
    kind().refuse_others(["a_b"], every)
    with pytest.raises(ConfigError, match="--type does not go with a source of the kind k"):
        kind().refuse_others(["a_b", "types"], every)


@pytest.mark.parametrize("name", KINDS)
def test_openings_take_the_options_that_are_declared(name: str) -> None:
    declared = KINDS[name]
    assert declared.name == name
    own = {option.name for option in declared.options}
    given = {"place", "storage_options", "memory", "splits", "function"}
    takes = set(declared.parameters) - given
    if takes & {"table", "form"}:  # a mapping of more of them
        assert own >= takes - {"table", "form"}
    else:
        assert own == takes


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
