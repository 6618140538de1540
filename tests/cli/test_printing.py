from __future__ import annotations

import io
import json
import sys

import pytest

from streamrec.cli.printing import print_json, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "käse", "n": [1]})
    assert json.loads(capsys.readouterr().out) == {"name": "käse", "n": [1]}


def test_no_bar_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("bytes") as progress:
        progress("reading", 1, 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("unit", ["bytes", "records"])
def test_a_bar_on_a_terminal(
    unit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(unit) as progress:
        progress("reading", 1, 2)
        progress("reading", 2, 2)
    assert "reading" in terminal.getvalue()
    assert capsys.readouterr().out == ""
