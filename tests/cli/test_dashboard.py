from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from streamrec.cli.dashboard import dashboard
from streamrec.feeder.page.samples import MOST
from streamrec.feeder.page.view import MOST_ROWS, view_of
from tests.feeder.page.snapshots import sample, snapshot


def shown(found: dict[str, Any], trouble: str | None = None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(dashboard(view_of(found), "feeder:7071", trouble))
    return capture.get()


def test_a_frame() -> None:
    samples = [sample(waits={"first_byte": 3.0, "body": 1.0}) for _ in range(MOST)]
    budget = {"used": 1 << 20, "lent": 2 << 20, "limit": 4 << 20}
    text = shown(snapshot(samples=samples, budget=budget))
    for words in (
        *("feeder:7071", "● ready", "57.0 MB/s", "48 ms", "2.0 MiB lent of 4.0 MiB"),
        *(
            "longest for the first bytes",
            "first_byte 75%, body 25%",
            "0 of 1",
            "10.0.0.5",
        ),
    ):
        assert words in text
    assert "no errors" in text


def test_a_feeder_in_trouble() -> None:
    found = snapshot(
        clients=0,
        obstacle="the feeder is draining",
        errors=[{"time": 0.0, "type": "StoreUnavailable", "message": "down"}],
    )
    found["datasets"]["train"] |= {"state": "failed", "problem": "the store is down"}
    text = shown(found, "no status at feeder:7071 (Connection refused)")
    for words in (
        *(
            "● not ready: the feeder is draining",
            "this is old",
            "train: the store is down",
            "Nobody reads",
        ),
        *("StoreUnavailable  down", "No client reads now."),
    ):
        assert words in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_foreign_text_has_no_power_over_the_terminal(width: int) -> None:
    hostile = "[red]a[/nothing] \x1b[2J\u202e[link=http://x]"
    error = {"time": 0.0, "type": hostile, "message": hostile * 100, "dataset": hostile}
    found = snapshot(hostile, errors=[error], obstacle=hostile)
    text = shown(found, width=width)
    assert not {"\x1b", "\u202e"} & set(text)
    assert "[red]a[/nothing]" in text
    assert max(map(len, text.splitlines())) <= width


def test_rows_are_bounded() -> None:
    assert "and 1 more subscriptions" in shown(snapshot(clients=MOST_ROWS + 1))
