from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from tests import fast

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that are started, each of which ends with 3."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def answers(texts: dict[str, str]) -> Callable[..., str]:
    return lambda *arguments: texts[arguments[0]]


def test_what_differs_from_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = " M streamrec/masking.py\n?? tests/fast.py\n D tests/gone.py\n"
    monkeypatch.setattr(fast, "_git", answers({"status": listed}))
    assert fast.changed_files() == ["streamrec/masking.py", "tests/fast.py"]


def test_what_the_last_commit_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_git", answers({"status": "", "diff": "streamrec/masking.py\n"}))
    assert fast.changed_files() == ["streamrec/masking.py"]


def test_changed_tests_come_first_and_then_the_nearest_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near = {"a.py": ["tests/test_a.py", "tests/test_c.py"], "b.py": ["tests/test_b.py"]}
    monkeypatch.setattr(fast, "nearest_tests", lambda path: near[path.name])
    changed = ["streamrec/a.py", "README.md", "streamrec/b.py", "tests/test_fast.py", "tests/x.py"]
    nearest = ["tests/test_a.py", "tests/test_b.py", "tests/test_c.py"]
    assert fast.tests_of_changes(changed) == ["tests/test_fast.py", *nearest]
    monkeypatch.setattr(fast, "MOST_FILES", 2)
    assert fast.tests_of_changes(changed) == ["tests/test_fast.py", "tests/test_a.py"]


@pytest.mark.parametrize(
    ("room", "tests"),
    [
        ("feeder/client", "tests/feeder/client"),
        ("streamrec/feeder/client/", "tests/feeder/client"),
        ("tests/wire", "tests/wire"),
        ("streamrec/plan/order/window.py", "tests/plan/order/test_window.py"),
        ("masking.py", "tests/test_masking.py"),
    ],
)
def test_the_tests_of_a_room_or_a_file(room: str, tests: str) -> None:
    assert fast.tests_of_room(room) == [tests]


def test_a_room_that_does_not_exist_is_refused() -> None:
    with pytest.raises(click.BadParameter, match=r"no tests of feed; the rooms are .*feeder"):
        fast.tests_of_room("feed")


def test_the_run_ends_as_pytest_does(started: list[list[str]]) -> None:
    assert CliRunner().invoke(fast.main, ["wire", "values"]).exit_code == 3
    assert started[0][-2:] == ["tests/wire", "tests/values"]


def test_nothing_is_run_if_nothing_changed(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "changed_files", lambda: ["README.md"])
    done = CliRunner().invoke(fast.main)
    assert done.exit_code == 0
    assert "name a room" in done.output
    assert started == []


@pytest.mark.parametrize(("now", "is_over"), [(99.0, False), (101.0, True)])
def test_no_test_begins_after_the_minute(
    now: float, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fast.UNTIL, "100")
    monkeypatch.setattr("time.time", lambda: now)
    if is_over:
        with pytest.raises(pytest.skip.Exception, match="the minute is over"):
            fast.pytest_runtest_setup()
    else:
        fast.pytest_runtest_setup()
