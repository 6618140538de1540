from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import StreamrecError
from streamrec.flow import child_process
from streamrec.flow.child_process import ChildProcess

if TYPE_CHECKING:
    from pathlib import Path


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
