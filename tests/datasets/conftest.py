"""The fixtures of a store that holds shards, which commands are tested with, too."""

from __future__ import annotations

from tests.cli.conftest import filled_store, store

__all__ = ["filled_store", "store"]
