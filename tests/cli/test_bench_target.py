from __future__ import annotations

import click
import pytest

from streamrec.cli.bench_target import dataset_settings, is_feeder, target_of_dataset


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["tcp://host:1/train"], True),
        (["TLS://host:1/train"], True),
        (["s3://bucket/a", "s3://bucket/b"], False),
        ([], False),
    ],
)
def test_the_address_of_a_feeder(urls: list[str], expected: bool) -> None:
    assert is_feeder(urls) is expected


def test_one_feeder_at_a_time() -> None:
    with pytest.raises(click.UsageError, match="one feeder is measured at a time"):
        is_feeder(["tcp://host:1/train", "s3://bucket/a"])


def test_the_target_names_the_settings_that_are_not_defaults() -> None:
    settings = dataset_settings(["s3://bucket/a"], None, None, {"lanes": 3, "seed": 0})
    target = target_of_dataset(settings, None)
    assert target.urls == ["s3://bucket/a"]
    assert target.settings == {"features": "infer", "batch_size": 64, "lanes": 3}
