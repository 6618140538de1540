from __future__ import annotations

import pytest

from streamrec.pipeline.fetch.awaited_shards import RECENT, AwaitedShards


class TestAwaitedShards:
    def test_waits_for_a_shard_add_up_with_the_one_that_goes_on(self) -> None:
        shards = AwaitedShards(lambda: 0.0)
        assert shards.longest({}) is None
        for shard, seconds in ((7, 1.0), (8, 1.5), (7, 1.0)):
            shards.add(shard, seconds)
        assert shards.longest({}) == (7, 2.0)
        assert shards.longest({8: 1.0}) == (8, 2.5)

    @pytest.mark.parametrize(("later", "expected"), [(0.9, (7, 1.0)), (1.9, (7, 1.0)), (2.1, None)])
    def test_waits_are_forgotten(self, later: float, expected: tuple[int, float] | None) -> None:
        now = 0.0
        shards = AwaitedShards(lambda: now)
        shards.add(7, 1.0)
        # Looked at on the way, as a report does, or not at all.
        now = min(later, 1.1) * RECENT
        shards.longest({})
        now = later * RECENT
        assert shards.longest({}) == expected
