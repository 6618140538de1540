from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.measure.places import Places, largest_of
from streamrec.stores import ObjectInfo


@given(
    sizes=st.lists(st.none() | st.integers(0, 100), min_size=1).filter(any),
    size=st.integers(1, 120),
    seed=st.integers(0, 1000),
)
def test_places_are_whole_ranges_of_a_shard(sizes: list[int | None], size: int, seed: int) -> None:
    shards = [ObjectInfo(f"s3://b/{n}", size, f'"{n}"') for n, size in enumerate(sizes)]
    places = Places(shards, size, seed)
    assert places.size == min(size, largest_of(shards))
    for _ in range(20):
        url, start, stop, etag = places.next()
        shard = next(one for one in shards if one.url == url)
        assert stop - start == places.size
        assert start % places.size == 0
        assert stop <= (shard.size or 0)
        assert etag == shard.etag


def test_every_place_is_found() -> None:
    shards = [ObjectInfo("a", 25), ObjectInfo("b", 9), ObjectInfo("c", 10), ObjectInfo("d")]
    places = Places(shards, 10)
    found = {places.next()[:3] for _ in range(100)}
    assert found == {("a", 0, 10), ("a", 10, 20), ("c", 0, 10)}


def test_empty_shards_are_no_place() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Places([ObjectInfo("a", 0), ObjectInfo("b")], 10)
