"""Fixtures of stores that hold shards for commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.devstore import DevStore
from tests.cli.support import DATA, storage_options

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def filled_store() -> Iterator[DevStore]:
    """Serve TensorFlow's shards in the bucket ``data``, also without a signature."""
    with DevStore(anonymous=True) as running:
        for path in DATA.glob("*.tfrecord"):
            running.put(f"data/{path.name}", path.read_bytes())
        yield running


@pytest.fixture
def store(filled_store: DevStore) -> DevStore:
    """Return the store without the faults and the statistics of earlier tests."""
    filled_store.faults = []
    filled_store.statistics.clear()
    return filled_store


@pytest.fixture
def credentials(store: DevStore) -> list[str]:
    """Return the options that let a command into the store."""
    return storage_options(store.storage_options)
