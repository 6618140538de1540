from __future__ import annotations

import gzip

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure import sample
from streamrec.measure.sample import SHARDS, ShardStart, blocks_of, read_sample
from tests.measure.support import place
from tests.support import asynchronous

pytestmark = pytest.mark.both_kernels

CONTENT = frame(b"0123456789") * 1000


@asynchronous
async def test_shards_from_all_over_the_dataset_are_read() -> None:
    shards = {f"part-{number:02}": CONTENT for number in range(40)} | {"empty": b""}
    async with place(shards) as found:
        stored = await read_sample(found.store, found.shards, 4000, "auto")
        assert len(stored) == SHARDS
        assert len({one.url for one in stored}) == SHARDS
        assert all(one.data.tobytes() == CONTENT[:1000] for one in stored)
        assert {one.compression for one in stored} == {"none"}


@asynchronous
async def test_empty_shards_give_no_sample() -> None:
    async with place({"x": b""}) as found:
        with pytest.raises(ConfigError, match="empty"):
            await read_sample(found.store, found.shards, 4000, "auto")


@pytest.mark.parametrize("length", [200, 10**6])
def test_compressed_bytes_are_decompressed_as_far_as_they_go(length: int) -> None:
    whole = gzip.compress(np.random.default_rng(0).bytes(1000) * 50)
    data = np.frombuffer(whole[:length], np.uint8)
    stored, frames = ShardStart("x", data, "gzip").frames()
    assert gzip.decompress(whole).startswith(frames.tobytes())
    assert len(stored.data) == len(data)
    if length > len(whole):
        assert len(frames) == 50_000


@pytest.mark.parametrize(("enough", "given"), [(1 << 20, 1 << 20), (100, 8 * 2000)])
def test_no_more_is_decompressed_than_is_enough(
    enough: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bytes for each that was read; zeros would give a thousand."""
    monkeypatch.setattr(sample, "ENOUGH", enough)
    data = np.frombuffer(gzip.compress(bytes(2 << 20))[:2000], np.uint8)
    _, frames = ShardStart("x", data, "gzip").frames()
    assert len(frames) == given


def test_the_blocks_are_those_of_whole_records() -> None:
    frames = np.frombuffer(CONTENT[:-3], np.uint8)
    blocks = blocks_of("x", frames, check_crc=True, most=100)
    assert sum(len(block) for block in blocks) == 999


def test_damage_in_the_first_record_is_an_error() -> None:
    frames = np.frombuffer(b"x" * 100, np.uint8)
    with pytest.raises(ValueError, match="length"):
        blocks_of("x", frames, check_crc=True, most=100)
