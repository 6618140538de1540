from __future__ import annotations

from streamrec.config import DatasetSettings, validate
from streamrec.demo.plan import FEATURES, DemoPlan
from streamrec.formats.examples.descriptions import from_description


def test_the_numbers_fit_together() -> None:
    plan = DemoPlan()
    assert plan.records == 1024
    assert plan.steps_per_epoch * plan.ranks * plan.batch_size == plan.records
    assert plan.lanes % plan.ranks == 0
    assert 0 < plan.stop_step < plan.steps_per_epoch
    assert plan.stopped_rank in range(plan.ranks)


def test_the_features_are_valid() -> None:
    assert sorted(from_description(FEATURES)) == ["id", "image", "label"]
    validate(DatasetSettings, {"source": "x", "features": FEATURES})
