from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamrec
from streamrec import kernel
from streamrec.errors import StreamrecError
from streamrec.flow import child_process
from streamrec.flow.child_process import (
    ENVIRONMENT_DEFAULTS,
    ChildProcess,
    HelperTimes,
    child_command,
    child_environment,
)
from streamrec.kernel.choice import VARIABLE

pytestmark = pytest.mark.both_kernels


def test_a_process_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "START_SECONDS", 0.01)
    (tmp_path / "silent.py").write_text("import sys; sys.stdin.read()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ChildProcess("silent", ["silent"], tmp_path / "log") as child:
        with pytest.raises(StreamrecError, match="silent process did not start: no reason"):
            child.ready()


def test_a_process_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "GOODBYE", 0.01)
    (tmp_path / "deaf.py").write_text("print('{}', flush=True)\nimport signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ChildProcess("deaf", ["deaf"], tmp_path / "log") as child:
        assert child.ready() == {}
    assert child.process.returncode == -9


def test_a_child_finds_this_package_and_nothing_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "shown.py").write_text("import sys\nmain = lambda: print(*sys.path)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    command = child_command("shown")
    done = subprocess.run(
        command, env=child_environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert command[0] == sys.executable
    places = done.stdout.split()
    assert str(tmp_path) not in places
    assert str(Path(streamrec.__file__).parents[1]) in places


@pytest.mark.skipif(sys.platform != "linux", reason="helpers need Linux")
def test_the_cpu_time_of_helpers_stays_when_they_have_ended() -> None:
    helpers = HelperTimes()
    code = "sum(range(10**5)); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        helpers.add(process.pid)
        process.communicate()
        waited_for = helpers.total()  # nothing can be read of it any more
    assert waited_for == 0
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        helpers.add(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        taken = helpers.total()
        helpers.end(process.pid)
    assert helpers.total() == taken > 0
    helpers.add(process.pid)
    helpers.leave(process.pid)
    assert helpers.total() == taken


def test_the_defaults_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT_DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    assert child_environment().items() >= ENVIRONMENT_DEFAULTS.items()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    assert child_environment()["OPENBLAS_NUM_THREADS"] == "7"
    assert child_environment()[VARIABLE] == kernel.implementation


def test_what_is_for_the_first_process_alone_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"STREAMREC_SERVER_TOKEN": "secret", "NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "9"}
    for name, text in secrets.items():
        monkeypatch.setenv(name, text)
    assert not secrets.keys() & child_environment().keys()
