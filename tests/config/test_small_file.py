from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from streamrec.config import small_file
from streamrec.config.daemon import load_daemon
from streamrec.config.small_file import read_small_file
from streamrec.errors import ConfigError

DATA = b"[datasets.a]\nsource = 'x'\n"


class Writer(logging.Handler):
    """A writer that comes when the log says that somebody is waited for."""

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__()
        self._path, self._data = path, data
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self._path.write_bytes(self._data)


@pytest.mark.parametrize("size", [0, 1, 100, 70_000])
def test_a_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert read_small_file(path, size) == b"x" * size
    if size:
        with pytest.raises(OSError, match=f"more than {size - 1} bytes"):
            read_small_file(path, size - 1)


@pytest.mark.parametrize("size", [0, 100, 200_000])
def test_a_pipe_is_read_to_its_end(size: int) -> None:
    """As the shell gives it for ``<(...)``."""
    receiver, sender = os.pipe()

    def write() -> None:
        with os.fdopen(sender, "wb") as file:
            file.write(b"x" * size)

    thread = threading.Thread(target=write)
    thread.start()
    assert read_small_file(f"/dev/fd/{receiver}", 1 << 20) == b"x" * size
    thread.join()
    os.close(receiver)


def test_a_fifo_that_nobody_writes_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_file, "PATIENCE", 1)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = Writer(path, DATA)
    small_file.log.addHandler(writer)
    try:
        assert load_daemon(path).datasets["a"].source == str(tmp_path / "x")
    finally:
        small_file.log.removeHandler(writer)
    assert writer.said == [f"{path} has nothing to read yet; waiting for somebody to write it"]


def test_a_device_without_an_end_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero cannot be read .*more than 1048576 bytes"):
        load_daemon(Path("/dev/zero"))
