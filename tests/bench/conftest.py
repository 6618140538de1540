"""The data and the peers of ``bench.adapters``, small."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.adapters import SIZES
from bench.peers import Peers

if TYPE_CHECKING:
    from pathlib import Path

    from bench.datasets import Dataset


@pytest.fixture(scope="module", params=SIZES)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    make, _, _ = SIZES[request.param]
    return make(tmp_path_factory.mktemp("data"), 1)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    return Peers(sys.executable, {}, tmp_path)
