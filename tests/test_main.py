from __future__ import annotations

import runpy
import sys

import pytest

import streamrec


def test_the_module_is_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["streamrec", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("streamrec", run_name="__main__")
    assert not ended.value.code
    assert streamrec.__version__ in capsys.readouterr().out
