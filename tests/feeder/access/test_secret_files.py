from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.feeder.access import secret_files
from streamrec.feeder.access.secret_files import SecretFiles, read_file, read_secret
from tests.feeder.certificates import write_secret

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def number(tmp_path: Path) -> Path:
    """A file that holds the number 1."""
    path = tmp_path / "number"
    write_secret(path, "1")
    return path


def numbers(*paths: Path) -> SecretFiles[list[int]]:
    def load() -> list[int]:
        found = [read_secret(str(path), "numbers") for path in paths]
        if not all(data.isdigit() for data in found):
            raise ConfigError("there is no number")
        return [int(data) for data in found]

    return SecretFiles(map(str, paths), load, "the numbers")


def test_files_are_followed(number: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = numbers(number)
    assert found.value == [1]
    found.look()
    assert caplog.records == []
    write_secret(number, "2")
    found.look()
    found.look()
    assert found.value == [2]
    assert [one.getMessage() for one in caplog.records] == [
        "the numbers have changed: new clients need what their files hold now"
    ]


@pytest.mark.parametrize("change", ["nonsense", "gone"])
def test_what_cannot_be_used_changes_nothing(
    number: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    found = numbers(number)
    if change == "gone":
        number.unlink()
    else:
        write_secret(number, "two")
    for _ in range(3):
        found.look()
    assert found.value == [1]
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("the numbers stay as they were: ")
    write_secret(number, "3")
    found.look()
    assert found.value == [3]


def test_two_files_that_change_one_after_the_other(number: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_secret(other, "10")
    found = numbers(number, other)
    write_secret(number, "two")
    found.look()
    write_secret(other, "20")
    found.look()
    assert found.value == [1, 10]
    write_secret(number, "2")
    found.look()
    assert found.value == [2, 20]


def test_nothing_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"numbers: .*/none cannot be read \(No such file"):
        numbers(tmp_path / "none")


def test_no_path() -> None:
    with pytest.raises(ConfigError, match="this is not a path"):
        read_file("a\0b", "setting")


def test_too_large_a_file(number: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "MOST_BYTES", 3)
    write_secret(number, "1234")
    with pytest.raises(ConfigError, match=r"setting: .* has more than 3 bytes"):
        read_secret(str(number), "setting")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_others_should_not_read_secrets(
    number: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: int
) -> None:
    number.chmod(mode)
    assert read_secret(str(number), "setting") == b"1"
    assert len(caplog.records) == warns
    assert all(f"its mode is {mode:03o}" in one.getMessage() for one in caplog.records)
