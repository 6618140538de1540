from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from streamrec.flow import forks
from streamrec.flow.forks import watch
from tests.forked_children import in_forked_child

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
from streamrec.flow.forks import keep_for_ever

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


@pytest.mark.parametrize("is_its_own", [False, True])
def test_a_fork_waits_for_the_work_of_another_thread(
    is_its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: Future[None] = Future()
    waits: list[tuple[list[Future[None]], float]] = []
    monkeypatch.setattr(forks, "wait", lambda *how: waits.append(how))
    forks.wait_for(work, threading.current_thread() if is_its_own else threading.Thread())
    in_forked_child(list)
    work.set_result(None)
    in_forked_child(list)
    assert waits == [([] if is_its_own else [work], forks.PATIENCE), ([], forks.PATIENCE)]
