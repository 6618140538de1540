"""Names of the objects beside a dataset's shards."""

from __future__ import annotations

import pytest

from streamrec.formats.shards.index_names import SUFFIX, index_url


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        (["s3://b/train-00000-of-00002", "s3://b/train-00001-of-00002"], "s3://b/train"),
        (["s3://b/x/train-0.tfrecord", "s3://b/x/val-0.tfrecord"], "s3://b/x/shards"),
        (["/d/one/1.tfrecord", "/d/two/1.tfrecord"], "/d/shards"),
        (["/d/only-7.tfrecord"], "/d/only-7.tfrecord"),
        (["part-1", "part-2"], "part"),
        (["fold1-00000-of-00002.tfrecord", "fold1-00001-of-00002.tfrecord"], "fold1"),
        (["web-2024-00000-of-00002", "web-2024-00001-of-00002"], "web-2024"),
        (["fold1-00000-of-00002", "fold2-00000-of-00002"], "fold"),
        (["https://h/a-1?sig=secret", "https://h/a-2?sig=secret"], "https://h/a"),
    ],
)
def test_the_index_stands_beside_the_shards(urls: list[str], found: str) -> None:
    assert index_url(urls) == found + SUFFIX
