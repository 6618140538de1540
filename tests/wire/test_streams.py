"""Hostile streams; the night, and ``python -m tests.wire.streams``, run more of them."""

from __future__ import annotations

import pytest

from streamrec.wire.protocol import Role
from tests.by_day import is_day
from tests.wire.streams import run

RUNS = 5_000 if is_day() else 20_000


@pytest.mark.parametrize("role", Role)
def test_an_end_refuses_what_is_wrong_and_nothing_else_happens(role: Role) -> None:
    refused = run(role, RUNS, seed=1)
    assert RUNS // 4 < refused < RUNS  # both kinds are among them
