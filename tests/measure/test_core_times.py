from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from streamrec.measure import core_times
from streamrec.measure.core_times import CoreSeconds, CoreTimes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(core_times, "TASKS", tmp_path)
    return tmp_path


def put(tasks: Path, thread: int, text: str) -> None:
    (tasks / str(thread)).mkdir(exist_ok=True)
    (tasks / str(thread) / "schedstat").write_text(text)


def test_threads_are_added_up_from_the_beginning_on(tasks: Path) -> None:
    put(tasks, 1, "5000000000 1000000000 12\n")
    times = CoreTimes()
    assert times.seconds() == CoreSeconds(0, 0)
    put(tasks, 1, "6000000000 3000000000 13\n")
    put(tasks, 2, "500000000 250000000 1\n")
    assert times.seconds() == CoreSeconds(1.5, 2.25)


def test_a_thread_that_ended_counts_as_it_was_last_seen(tasks: Path) -> None:
    times = CoreTimes()
    put(tasks, 1, "2000000000 1000000000 1\n")
    times.seconds()
    (tasks / "1" / "schedstat").unlink()
    assert times.seconds() == CoreSeconds(2, 1)


@pytest.mark.parametrize("text", [None, "", "no numbers here\n"])
def test_some_systems_do_not_tell_it(text: str | None, tasks: Path) -> None:
    if text is not None:
        put(tasks, 1, text)
    assert CoreTimes().seconds() is None


@pytest.mark.skipif(not core_times.TASKS.exists(), reason="only Linux tells it")
def test_work_in_a_thread_is_seen() -> None:
    times = CoreTimes()
    done, worked = threading.Event(), threading.Event()

    def work() -> None:
        while time.thread_time() < 0.02:
            pass
        worked.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    worked.wait()
    found = times.seconds()
    done.set()
    thread.join()
    assert found is not None
    assert found.ran >= 0.015
    assert found.waited >= 0
