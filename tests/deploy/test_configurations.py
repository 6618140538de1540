"""The feeders' configurations pass the check of ``streamrec serve --check-config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.support import streamrec
from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PATHS = sorted((ROOT / "deploy").rglob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT / "deploy")))
def test_it_is_one(path: Path) -> None:
    outcome = streamrec("serve", path, "--check-config")
    assert (outcome.code, outcome.err) == (0, "")
    assert list(outcome.object["datasets"]) == ["train"]
