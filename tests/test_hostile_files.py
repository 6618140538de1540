"""Damaged files; the night, and ``python -m tests.hostile_files``, read more of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.by_day import is_day
from tests.hostile_files import TARGETS, run

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 300 if is_day() else 3_000


@pytest.mark.parametrize("target", TARGETS)
def test_a_reader_refuses_what_is_wrong_and_gives_what_is_there(
    target: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    refused = run(target, RUNS, 1, tmp_path / "file")
    assert RUNS // 10 < refused < RUNS  # both kinds are among them
