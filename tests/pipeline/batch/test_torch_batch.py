"""Batches as tensors; those of a loader are in tests/adapters/test_torch_loader.py."""

from __future__ import annotations

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.columns import BytesColumn, Ragged
from tests.support import IN_TORCHS_WORKER, has_torch, torch

pytestmark = [has_torch, IN_TORCHS_WORKER]


@pytest.fixture
def batch() -> Batch:
    columns = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "rows": Ragged(np.arange(5), np.array([0, 2, 5])),
        "name": BytesColumn.of([b"a", b"b"]),
    }
    origin, position = Origin(np.zeros(2, np.int32), np.arange(2)), {"step": 3}
    return Batch(columns, 2, 1, origin, position, np.array([True, False]))  # type: ignore[arg-type]


def test_tensors_are_of_the_batchs_memory(batch: Batch) -> None:
    tensors = batch.to_torch()
    assert tensors["x"].data_ptr() == batch["x"].ctypes.data
    assert tensors["rows"].values().data_ptr() == batch["rows"].values.ctypes.data
    assert tensors["name"] is batch["name"]
    assert tensors.mask is not None
    assert tensors.mask.data_ptr() == batch.mask.ctypes.data  # type: ignore[union-attr]


def test_they_keep_what_is_known_about_the_rows(batch: Batch) -> None:
    tensors = batch.to_torch()
    assert (tensors.rows, tensors.epoch) == (2, 1)
    assert tensors.origin is batch.origin
    assert tensors.next_position is batch.next_position


def test_what_is_cast_is_copied(batch: Batch) -> None:
    for dtype in (torch.float16, "float16", {"x": torch.float16}):
        tensors = batch.to_torch(dtype)
        assert tensors["x"].dtype == torch.float16
        assert tensors["rows"].dtype == torch.int64
        assert batch["x"].dtype == np.float32


def test_a_feature_that_is_not_there_is_refused(batch: Batch) -> None:
    with pytest.raises(ConfigError, match="dtype names the feature 'y'"):
        batch.to_torch({"y": torch.float16})
