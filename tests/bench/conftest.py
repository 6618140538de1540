"""The data and the peers of ``bench.adapters``, small."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.datasets import recsys
from bench.peers import Peers

if TYPE_CHECKING:
    from pathlib import Path

    from bench.datasets import Dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return recsys(tmp_path_factory.mktemp("data"), 1)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    return Peers(sys.executable, {}, tmp_path)
