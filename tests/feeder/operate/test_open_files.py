from __future__ import annotations

import resource

import pytest

from streamrec.config.access import ServedSettings
from streamrec.config.daemon import DaemonSettings
from streamrec.feeder.operate import daemon
from streamrec.feeder.operate.open_files import ENOUGH, raise_limit
from tests.feeder.support import server_settings

FREE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "is_told"),
    [
        (1024, 65_536, 65_536, False),
        (1024, FREE, ENOUGH, False),
        (1024, 1 << 30, ENOUGH, False),
        (2 << 20, 1 << 30, None, False),
        (FREE, FREE, None, False),
        (1024, 2000, 2000, True),
        (2000, 2000, None, True),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be(
    soft: int,
    hard: int,
    raised: int | None,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_limit(server_settings())
    assert asked == ([] if raised is None else [(raised, hard)])
    assert ("the limit of open files is 2000" in caplog.text) == is_told
    assert bool(caplog.records) == is_told


def test_the_daemon_raises_it_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    async def serve(*_: object, **__: object) -> None:
        happened.append("serves")

    def note(_: DaemonSettings.Server) -> None:
        happened.append("raises")

    monkeypatch.setattr(daemon, "serve", serve)
    monkeypatch.setattr(daemon, "raise_limit", note)
    daemon.run(DaemonSettings(datasets={"train": ServedSettings(source="x")}))
    assert happened == ["raises", "serves"]
