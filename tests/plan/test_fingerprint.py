from __future__ import annotations

from dataclasses import replace

import pytest

from streamrec.errors import OtherOrder
from streamrec.plan.fingerprint import AS_IT_COMES, Fingerprint, by_shard

NOW = Fingerprint(
    names="0" * 16,
    shards=1000,
    order=by_shard(3),
    lanes=48,
    shuffle=True,
    seed=1,
    shuffle_window=256 << 20,
    global_batch=64,
)
NO_SETTING = "another number of shards open, which no setting restores"


@pytest.mark.parametrize(
    ("saved", "remedy"),
    [
        (replace(NOW, order=by_shard(1), lanes=96), r"\(lanes=96 have 1 shards open each\)"),
        (replace(NOW, order=by_shard(18), lanes=8), r"\(lanes=8 have 18 shards open each\)"),
        (
            replace(NOW, order=by_shard(4), lanes=4, shuffle_window=8 << 20),
            r"\(lanes=4 have 4 shards open each\)",
        ),
        (replace(NOW, order=by_shard(3) + AS_IT_COMES), r"\(lanes=48 have 3 shards open each\)"),
        (replace(NOW, order=by_shard(1)), NO_SETTING),
        (replace(NOW, order=by_shard(144), lanes=1, shuffle_window=8 << 20), NO_SETTING),
        (replace(NOW, order=by_shard(2), lanes=0, shuffle_window=-1), NO_SETTING),
        (replace(NOW, seed=2), "restore these settings, or begin without the state"),
    ],
)
def test_a_refusal_says_what_serves(saved: Fingerprint, remedy: str) -> None:
    with pytest.raises(OtherOrder, match=remedy):
        NOW.check(saved)
