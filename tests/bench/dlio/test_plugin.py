"""The plugin within DLIO; skipped where that is not installed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("dlio_benchmark")

from dlio_benchmark.common.enumerations import Shuffle

from bench.dlio.plugin import settings


@pytest.mark.parametrize(
    ("files", "samples", "shuffles"),
    [
        (Shuffle.OFF, Shuffle.OFF, False),
        (Shuffle.SEED, Shuffle.OFF, True),
        (Shuffle.OFF, Shuffle.RANDOM, True),
        ("seed", Shuffle.SEED, True),
    ],
)
def test_a_stream_shuffles_where_dlio_would(
    files: Shuffle, samples: Shuffle, shuffles: bool
) -> None:
    arguments = SimpleNamespace(
        file_shuffle=files,
        sample_shuffle=samples,
        batch_size=4,
        seed=3,
        seed_change_epoch=True,
        my_rank=1,
        comm_size=2,
    )
    assert settings(arguments, 5) == {
        "batch_size": 4,
        "shuffle": shuffles,
        "seed": 8,
        "rank": 1,
        "world_size": 2,
    }
