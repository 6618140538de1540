from __future__ import annotations

import subprocess
import sys

import pytest

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
