from __future__ import annotations

from dataclasses import replace

import pytest

from streamrec.errors import OtherOrder
from streamrec.plan.fingerprint import Fingerprint, by_shard

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


@pytest.mark.parametrize("saved", [replace(NOW, order=by_shard(1), lanes=96), replace(NOW, seed=2)])
def test_a_refusal_says_what_serves(saved: Fingerprint) -> None:
    with pytest.raises(OtherOrder, match="restore these settings, or begin without the state"):
        NOW.check(saved)
