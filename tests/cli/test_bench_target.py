from __future__ import annotations

from streamrec.cli.bench_target import dataset_settings, target_of_dataset


def test_the_target_names_the_settings_that_are_not_defaults() -> None:
    settings = dataset_settings(["s3://bucket/a"], None, None, {"lanes": 3, "seed": 0})
    target = target_of_dataset(settings, None)
    assert target.urls == ["s3://bucket/a"]
    assert target.settings == {"features": "infer", "batch_size": 64, "lanes": 3}
