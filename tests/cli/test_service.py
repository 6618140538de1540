from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from streamrec.cli.serve import _watch_stdin, run
from streamrec.config import validate
from streamrec.config.daemon import DaemonSettings
from streamrec.feeder.operate import daemon, log_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.feeder.operate.daemon import Bound

SETTINGS = validate(DaemonSettings, {"datasets": {"a": {"source": "x"}}})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[DaemonSettings]:
    """Stands in for the daemon, and keeps the log as it is."""
    seen: list[DaemonSettings] = []

    def run(
        settings: DaemonSettings,
        ready: Callable[[Bound], None],
        load: Callable[[], DaemonSettings],
    ) -> None:
        del ready
        assert load() == settings
        seen.append(settings)

    monkeypatch.setattr(daemon, "run", run)
    monkeypatch.setattr(log_format, "configure", lambda _: None)
    return seen


def test_the_daemon_runs(runs: list[DaemonSettings]) -> None:
    run(SETTINGS, lambda bound: None, until_eof=False, load=lambda: SETTINGS)
    assert runs == [SETTINGS]


def test_the_end_of_input_is_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    pieces = [b"ignored", b""]
    monkeypatch.setattr(os, "read", lambda fd, size: pieces.pop(0))
    monkeypatch.setattr(os, "kill", lambda *facts: sent.append(facts))
    _watch_stdin()
    assert sent == [(os.getpid(), signal.SIGTERM)]
