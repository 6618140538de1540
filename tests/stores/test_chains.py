"""Chains of fsspec's, each of whose links may be a name or a pattern: as shards, and as sources."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.sources.opening import kind_of
from streamrec.stores.stored_files import files_below, find_each, find_files, names_in

if TYPE_CHECKING:
    from pathlib import Path

ROWS = b"a,b\n1,2\n"
ONE, TWO, ODD, LIKE = "in/1.csv", "in/2.csv", "in/x[3].csv", "in/x3.csv"
NAMES = (ONE, TWO, LIKE, ODD)


def zipped(path: Path | io.BytesIO, names: tuple[str, ...] = NAMES) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, ROWS)


@pytest.fixture
def archives(tmp_path: Path) -> str:
    """Return the directory of two zips that each have all names, a third one, and a tar."""
    for name in ("a.zip", "c[1].zip"):
        zipped(tmp_path / name)
    zipped(tmp_path / "b.zip", ("other",))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in NAMES:
            member = tarfile.TarInfo(name)
            member.size = len(ROWS)
            archive.addfile(member, io.BytesIO(ROWS))
    return str(tmp_path)


CASES = {
    "zip://in/*.csv::{}/a.zip": [(name, "a.zip") for name in NAMES],
    "zip://**/*.csv::{}/a.zip": [(name, "a.zip") for name in NAMES],
    "zip://in/{{1,2}}.csv::{}/a.zip": [(ONE, "a.zip"), (TWO, "a.zip")],
    "zip://in/{{1..2}}.csv::{}/a.zip": [(ONE, "a.zip"), (TWO, "a.zip")],
    "zip://in/x[3].csv::{}/a.zip": [(ODD, "a.zip")],
    "zip://in/x[[]3].csv::{}/a.zip": [(ODD, "a.zip")],
    "zip://in/x[0-9].csv::{}/a.zip": [(LIKE, "a.zip")],
    "zip://in/1.csv::{}/a.zip": [(ONE, "a.zip")],
    "zip://in/1.csv::file://{}/a.zip": [(ONE, "a.zip")],
    "tar://in/*.csv::{}/a.tar": [(name, "a.tar") for name in NAMES],
    "zip://in/[12].csv::{}/[ac]*.zip": [
        (name, archive) for archive in ("a.zip", "c[1].zip") for name in (ONE, TWO)
    ],
    "zip://in/1.*::{}/*.zip": [(ONE, "a.zip"), (ONE, "c[1].zip")],
    "zip://in/1.csv::{}/{{a,c[1]}}.zip": [(ONE, "a.zip"), (ONE, "c[1].zip")],
    "zip://in/1.csv::{}/c[1].zip": [(ONE, "c[1].zip")],
    "zip://in/1.csv::{}/c[[]1].zip": [(ONE, "c[1].zip")],
    "simplecache::zip://in/[12].csv::{}/a.zip": [(ONE, "a.zip"), (TWO, "a.zip")],
}


@pytest.mark.parametrize("text", CASES)
def test_every_link_may_be_a_pattern(archives: str, text: str) -> None:
    place = text.format(archives)
    before = text[: text.index("://") + len("://")]
    after = text[text.rindex("::") : text.index("{}/")]
    wanted = [f"{before}{name}{after}{archives}/{archive}" for name, archive in CASES[text]]
    files = find_files(place, {})
    assert [file.url for file in files] == wanted
    for file in files:
        with file.open() as opened:
            assert opened.read() == ROWS
    assert sr.shards(place) == sorted(wanted)


def test_a_directory_in_an_archive(archives: str) -> None:
    url = f"zip://in::{archives}/a.zip"
    assert [file.name for file in find_files(url, {}, (".csv",))] == sorted(
        name.removeprefix("in/") for name in NAMES
    )
    assert names_in(url, {}) == [name.removeprefix("in/") for name in NAMES]
    assert list(files_below(f"zip://::{archives}/a.zip", {})) == list(NAMES)
    named = list(find_each([f"zip://{ODD}::{archives}/a.zip", f"zip://no::{archives}/a.zip"], {}))
    assert [file and file.name for file in named] == ["x[3].csv", None]


@pytest.mark.parametrize("text", ["zip://no/*.csv::{}/a.zip", "zip://in/*.no::{}/*.zip"])
def test_what_nothing_matches(archives: str, text: str) -> None:
    assert find_files(text.format(archives), {}) == []
    with pytest.raises(ObjectNotFound, match="no object matches"):
        sr.shards(text.format(archives))


def test_no_archive_matches(archives: str) -> None:
    assert find_files(f"zip://in/*.csv::{archives}/no*.zip", {}) == []
    with pytest.raises(ObjectNotFound, match="no object matches") as caught:
        sr.shards(f"zip://in/*.csv::{archives}/no*.zip")
    assert caught.value.url == f"{archives}/no*.zip"


def test_archives_in_a_store() -> None:
    data = io.BytesIO()
    zipped(data)
    with DevStore() as store:
        for name in ("1.zip", "2.zip"):
            store.put(f"bucket/{name}", data.getvalue())
        options = {"s3": store.storage_options}
        text = "zip://in/[12].csv::s3://bucket/?.zip"
        wanted = [f"zip://{name}::s3://bucket/{n}.zip" for n in (1, 2) for name in (ONE, TWO)]
        assert [file.url for file in find_files(text, options)] == wanted
        assert sr.shards(text, storage_options=options) == sorted(wanted)


def test_the_kind_of_a_source_is_told_by_the_name_in_the_archive(archives: str) -> None:
    assert kind_of(f"tar://in/*.csv::{archives}/a.tar", {}) == "csv"
    assert kind_of(f"zip://in/1.jsonl::{archives}/*.zip", {}) == "jsonl"
    assert kind_of(f"zip://in::{archives}/a.zip", {}) == "csv"


def test_options_of_what_holds_an_archive_are_by_its_scheme() -> None:
    options = {"key": "untold-1", "secret": "untold-2"}
    message = r"put 'key', 'secret' into a mapping for 's3', as in \{'s3': \{'key': \.\.\.\}\}"
    with pytest.raises(ConfigError, match=message) as caught:
        list(sr.open("zip://*::s3://b/a.zip", storage_options=options, engine="thread"))
    assert "untold" not in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        find_files("zip://*::s3://b/a.zip", options)
