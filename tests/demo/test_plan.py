from __future__ import annotations

import pytest

from streamrec.config import DatasetSettings, validate
from streamrec.demo.plan import FEATURES, Plan
from streamrec.formats.examples.descriptions import from_description


def test_the_numbers_fit_together() -> None:
    plan = Plan()
    assert plan.records == 1024
    assert plan.steps_per_epoch * plan.ranks * plan.batch_size == plan.records
    assert plan.lanes % plan.ranks == 0
    assert 0 < plan.stop_step < plan.steps_per_epoch
    assert plan.stopped_rank in range(plan.ranks)


@pytest.mark.parametrize("wrong", [{"shards": 20}, {"batch_size": 15}, {"ranks": 3}])
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not end at a step"):
        Plan(**wrong)


def test_the_features_are_valid() -> None:
    assert sorted(from_description(FEATURES)) == ["id", "image", "label"]
    validate(DatasetSettings, {"source": "x", "features": FEATURES})
