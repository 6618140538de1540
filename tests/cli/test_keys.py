from __future__ import annotations

import os
import pty
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from streamrec.cli.keys import is_quit_within, single_keys

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal as standard input; the descriptor that types."""
    typing, shown = pty.openpty()
    with os.fdopen(shown, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield typing
        os.close(typing)


@pytest.mark.parametrize(("typed", "quits"), [(b"q", True), (b"Q", True), (b"x", False)])
def test_q_ends_it_without_enter(keyboard: int, typed: bytes, quits: bool) -> None:
    with single_keys():
        os.write(keyboard, typed)
        assert is_quit_within(60 if quits else 0.01) is quits


def test_the_terminal_is_as_before(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin)
    with single_keys():
        assert termios.tcgetattr(sys.stdin) != before
    assert termios.tcgetattr(sys.stdin) == before


def test_without_a_terminal_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with single_keys():
        assert not is_quit_within(0)
