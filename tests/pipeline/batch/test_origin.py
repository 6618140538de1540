from __future__ import annotations

import pickle

import numpy as np
import pytest

import streamrec as sr
from streamrec.pipeline.batch.origin import NoColumn
from tests.pipeline.small_datasets import write


@pytest.fixture
def batch(tmp_path_factory: pytest.TempPathFactory) -> sr.Batch:
    source = write(tmp_path_factory.mktemp("raw") / "raw", ((40,) * 2,))
    made: sr.Batch = next(
        iter(
            sr.open(
                source,
                batch_size=2,
                engine="thread",
                transform=lambda _: {"image": np.zeros(2), "label": np.ones(2)},
            )
        )
    )
    return made


def test_it_names_the_columns_there_are(batch: sr.Batch) -> None:
    with pytest.raises(KeyError) as caught:
        batch["x"]
    assert str(caught.value) == "the batch has no column 'x'; there are image, label"
    with pytest.raises(KeyError, match="did you mean 'image'"):
        batch["images"]
    assert caught.value.args == ("x",)


def test_it_is_a_mapping_as_before(batch: sr.Batch) -> None:
    assert batch.get("x") is None
    assert "x" not in batch
    assert "label" in batch


def test_pickled_it_says_the_same() -> None:
    error = NoColumn("x", ["a", "b"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_tensors_do_the_same(batch: sr.Batch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    tensors = batch.to_torch()
    with pytest.raises(KeyError, match="no column 'x'; there are image, label"):
        tensors["x"]
    assert tensors.get("x") is None
