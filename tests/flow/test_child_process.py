from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import StreamrecError
from streamrec.flow import child_process
from streamrec.flow.child_process import ChildProcess, watch
from tests.forked_children import in_forked_child

if TYPE_CHECKING:
    from pathlib import Path


# Python 3.12 and later warn of each fork of a process with several threads, as this one may be.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Owner:
    def __init__(self) -> None:
        self.times = 0

    def leave_to_parent(self) -> None:
        self.times += 1


def test_a_child_is_told_and_its_parent_is_not() -> None:
    owner = Owner()
    watch(owner, Owner.leave_to_parent)
    assert in_forked_child(lambda: owner.times) == 1
    assert in_forked_child(lambda: in_forked_child(lambda: owner.times)) == 2
    assert owner.times == 0


KEEP = """
import os
from streamrec.flow.child_process import keep_for_ever

class Loud:
    def __del__(self, write=os.write):  # print is gone by then
        write(1, b"destroyed")

kept = [Loud()]
"""


@pytest.mark.parametrize(("more", "said"), [("", "destroyed"), ("keep_for_ever(kept)", "")])
def test_what_is_kept_outlives_the_interpreter(more: str, said: str) -> None:
    command = [sys.executable, "-c", KEEP + more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == said


def test_a_process_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "START", 0.01)
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
