from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.measure.targets import dataset_settings, target_of_dataset, target_of_feeder

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[datasets.train]
source = "s3://bucket/train-*"
lanes = 4

[datasets.test]
source = "s3://bucket/test-*"
"""


def test_the_target_names_the_settings_that_are_not_defaults() -> None:
    settings = dataset_settings(["s3://bucket/a"], changes={"lanes": 3, "seed": 0})
    target = target_of_dataset(settings, None)
    assert target.urls == ["s3://bucket/a"]
    assert target.settings == {"features": "infer", "batch_size": 64, "lanes": 3}


def test_settings_of_a_feeder_s_file(tmp_path: Path) -> None:
    config = tmp_path / "feeder.toml"
    config.write_text(CONFIG)
    settings = dataset_settings([], config, "train", {"lanes": 8})
    assert (settings.urls, settings.lanes, settings.batch_size) == (["s3://bucket/train-*"], 8, 64)
    assert dataset_settings(["s3://b/a", "s3://b/c"], config, "train").urls == [
        "s3://b/a",
        "s3://b/c",
    ]
    for name, words in ((None, "choose with --dataset"), ("trian", "no dataset 'trian'")):
        with pytest.raises(ConfigError, match=words):
            dataset_settings([], config, name)


def test_the_target_of_a_feeder_has_no_secrets() -> None:
    assert target_of_feeder("tcp://host:1/train").urls == ["tcp://host:1/train"]
