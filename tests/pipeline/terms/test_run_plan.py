from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from streamrec.config import Pack
from streamrec.pipeline.terms.run_plan import RunPlan, keeps_placeholders, marks_placeholders
from tests.pipeline.small_datasets import settings_of


@pytest.mark.parametrize(
    ("on_corrupt", "steps", "batch_size", "expected"),
    [
        ("raise", 3, 2, False),
        ("skip", None, 2, False),
        ("skip", 3, None, False),
        ("skip", 3, 2, True),
    ],
)
def test_places_are_kept_where_batches_are_counted(
    on_corrupt: str, steps: int | None, batch_size: int | None, expected: bool
) -> None:
    budget = 0 if on_corrupt == "raise" else 1
    settings = settings_of("x", on_corrupt=on_corrupt, corrupt_budget=budget, steps_per_epoch=steps)
    assert keeps_placeholders(settings, batch_size) is expected
    indexed = settings.model_copy(update={"index": True})
    assert keeps_placeholders(indexed, batch_size) is (
        on_corrupt == "skip" and batch_size is not None
    )


@pytest.mark.parametrize("values", [{"filter": "app:is_long"}, {"pack": Pack(8)}])
def test_what_leaves_records_out_leaves_no_places(values: Any) -> None:
    settings = settings_of(
        "x", on_corrupt="skip", corrupt_budget=1, steps_per_epoch=3, index=True, **values
    )
    assert not keeps_placeholders(settings, 2)
    assert not marks_placeholders(settings, 2)


@pytest.mark.parametrize("values", [{"shuffle": True}, {"length_buckets": 2}])
def test_windows_know_of_damage_that_leaves_no_row(values: Any) -> None:
    settings = settings_of("x", on_corrupt="skip", corrupt_budget=1, **values)
    assert not keeps_placeholders(settings, 2)
    assert marks_placeholders(settings, 2)
    assert not marks_placeholders(settings.model_copy(update={"pack": Pack(8)}), 2)
    assert not marks_placeholders(settings.model_copy(update={"filter": "app:is_long"}), 2)
    assert not marks_placeholders(settings.model_copy(update={"on_corrupt": "raise"}), 2)


def test_without_windows_only_a_row_has_a_place() -> None:
    settings = settings_of("x", on_corrupt="skip", corrupt_budget=1)
    assert not marks_placeholders(settings, 2)
    assert marks_placeholders(settings.model_copy(update={"steps_per_epoch": 3}), 2)


@pytest.mark.parametrize(("batch_size", "rows"), [(None, 1), (8, 8)])
def test_a_step_of_single_records_has_one(batch_size: int | None, rows: int) -> None:
    assert RunPlan.rows(Mock(by_record=None, batch_size=batch_size), 5) == rows
