"""Settings for tests of the pipeline."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _loops_never_block(loops_never_block: None) -> None:
    """Refuse calls that block an event loop, in every test here that runs one."""
