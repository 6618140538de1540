from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.config.named_files import NotAFile, open_regular
from streamrec.errors import ConfigError, ObjectChanged, ObjectNotFound, StoreError
from streamrec.feeder.access.tokens import read_file
from streamrec.stores.base.protocol import ObjectInfo, file_version, read_range
from streamrec.stores.open import Stores
from streamrec.stores.stored_files import PinnedFile, find_files
from tests.support import asynchronous, open_fds

if TYPE_CHECKING:
    from collections.abc import Callable


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    # Paths of sockets may not be longer than 107 bytes.
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)
        server.bind(path.name)
        os.chdir(here)


ODD = pytest.mark.parametrize("make", [fifo, device, listening])


@ODD
@asynchronous
async def test_a_store_of_files_waits_for_none(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x.tfrecord")
    stores = Stores()
    url = str(tmp_path / "x.tfrecord")
    with pytest.raises(StoreError) as caught:
        await read_range(stores.store_for(url), ObjectInfo(url), 0, 10)
    assert caught.value.url == url
    assert not caught.value.retryable
    await stores.aclose()


@pytest.mark.parametrize("make", [fifo, device])
@pytest.mark.parametrize("name", ["x.tfrecord", "*.tfrecord"])
def test_a_stream_tells_it(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / "x.tfrecord")
    with pytest.raises(StoreError, match="FIFO, a device"):
        list(sr.open(str(tmp_path / name), engine="thread"))


def test_a_link_that_leads_nowhere_is_not_left_out(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"1")
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "gone")
    with pytest.raises(ObjectNotFound, match=r"b.tfrecord"):
        list(sr.open(f"{tmp_path}/*.tfrecord", engine="thread"))


@pytest.mark.parametrize("make", [fifo, device])
def test_a_source_of_a_writer(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x.csv")
    for place in (tmp_path / "x.csv", tmp_path):
        with pytest.raises(StoreError, match="FIFO, a device"):
            find_files(str(place), {})


@pytest.mark.parametrize("make", [fifo, device])
def test_a_secret(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "token")
    with pytest.raises(ConfigError, match="FIFO"):
        read_file(str(tmp_path / "token"), "token")


@ODD
def test_no_writer_replaces_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x.tfrecord"
    make(path)
    before = path.stat()
    with pytest.raises(StoreError, match="FIFO, a device"), sr.TFRecordWriter(path) as writer:
        writer.write(b"1")
    assert os.path.samestat(before, path.stat())
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_file_that_grows_while_it_is_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(10))
    file = PinnedFile(str(path), file_version(path.stat()))
    plain = PinnedFile.read

    def growing(self: PinnedFile, size: int = -1) -> bytes | None:
        with path.open("ab") as more:
            more.write(bytes(10))
        return plain(self, size)

    monkeypatch.setattr(PinnedFile, "read", growing)
    with file, pytest.raises(ObjectChanged):
        file.readall()
    assert path.stat().st_size == 20


def test_descriptors_are_closed(tmp_path: Path) -> None:
    fifo(tmp_path / "x")
    before = open_fds()
    for _ in range(3):
        with pytest.raises(NotAFile):
            open_regular(str(tmp_path / "x"), os.O_RDONLY)
    assert open_fds() <= before
