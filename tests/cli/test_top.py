from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from streamrec.cli.top import is_quit_within, single_keys, watch
from streamrec.feeder.operate import status
from tests.cli.support import assert_one_sentence, command, environment, streamrec
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NOWHERE = "127.0.0.1:1"


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


@contextmanager
def feeder() -> Iterator[str]:
    """Run a feeder with a status port; yield its address."""
    with served({"train": FakeDataset()}) as found:
        serving = status.serving("127.0.0.1:0", found.feeder)
        try:
            yield found.call(serving.__aenter__())
        finally:
            found.call(serving.__aexit__(None, None, None))


@pytest.mark.parametrize("form", ["{}", "http://{}/"])
def test_one_frame(form: str) -> None:
    with feeder() as where:
        outcome = streamrec("top", form.format(where), "--once")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"streamrec feeder {where}  ● ready" in outcome.out
    assert "Nobody reads now." in outcome.out
    assert "\x1b" not in outcome.out


def test_one_frame_in_a_locale_without_unicode() -> None:
    with feeder() as where:
        variables = environment(PYTHONIOENCODING="latin-1", COLUMNS="60")
        arguments = command("top", where, "--once")
        done = subprocess.run(arguments, capture_output=True, env=variables, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"streamrec feeder {where}  ? ready".encode() in done.stdout
    assert b"\\u" not in done.stdout


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert_one_sentence(streamrec("top", "[::1]:1"), 1, "no status at [::1]:1 (")


def test_json_is_that_of_the_feeder() -> None:
    with feeder() as where:
        outcome = streamrec("top", where, "--json")
    assert outcome.object["datasets"]["train"]["state"] == "open"


def test_the_screen_follows_a_feeder_that_goes() -> None:
    frames, screen = 0, io.StringIO()
    running = feeder()
    where = running.__enter__()

    def pause(seconds: float) -> bool:
        nonlocal frames
        frames += 1
        assert seconds == 0.5
        if frames == 2:
            running.__exit__(None, None, None)
        return frames == 4  # as if q was typed

    host, _, port = where.rpartition(":")
    console = Console(file=screen, force_terminal=True, width=100, height=60)
    watch(console, [(host, int(port))], 0.5, pause)
    assert screen.getvalue().count("● ready") == 4
    assert "(Connection refused); this is old" in screen.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "options", "shown"),
    [(True, (), "watch"), (True, ("--once",), "once"), (False, (), "once")],
)
def test_a_terminal_is_watched(
    is_terminal: bool, options: tuple[str, ...], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[object, ...]] = []
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    monkeypatch.setattr("streamrec.cli.top.watch", lambda _, *what: called.append(("watch", *what)))

    def look(where: object) -> Callable[[None], str]:
        called.append(("once", where))
        return str

    monkeypatch.setattr("streamrec.cli.top.look", look)
    assert streamrec("top", "host:7", *options).code == 0
    every = (2.0,) if shown == "watch" else ()
    assert called == [(shown, [("host", 7)], *every)]


def test_several_feeders_are_shown_side_by_side() -> None:
    with feeder() as one, feeder() as other:
        outcome = streamrec("top", one, other, NOWHERE, "--once")
    assert (outcome.code, outcome.err) == (0, "")
    assert "streamrec, 3 feeders" in outcome.out
    assert outcome.out.count("Nobody reads") == 2
    assert "no answer" in outcome.out
    assert "no rank waits much longer" in outcome.out


def test_json_of_several_feeders_is_by_address() -> None:
    with feeder() as one, feeder() as other:
        outcome = streamrec("top", one, other, "--json")
    assert [*outcome.object] == [one, other]


def test_feeders_of_which_none_answers_are_an_error() -> None:
    outcome = streamrec("top", NOWHERE, NOWHERE, "--once")
    assert_one_sentence(outcome, 1, "none of 2 feeders answers")


def test_nobody_there_is_one_sentence() -> None:
    with feeder() as where:
        pass
    assert_one_sentence(streamrec("top", where), 1, where, "Connection refused", "status")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("host:0x",), ("h:1", "--every", "0"), ("h:1", "--every", "nan")],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert_one_sentence(streamrec("top", *arguments), 2)
