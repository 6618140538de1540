from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position
from streamrec.values.columns import BytesColumn


class TestBatch:
    def batch(self, **columns: Any) -> Batch:
        origin = Origin(np.zeros(2, np.int32), np.arange(2))
        position: Any = None
        return Batch(columns, 2, 0, origin, position)

    def test_is_a_mapping_with_as_many_rows(self) -> None:
        batch = self.batch(a=np.arange(2), b=np.arange(2))
        assert list(batch) == ["a", "b"]
        assert batch["a"] is batch.columns["a"]
        assert len(batch) == 2
        assert repr(batch) == "<Batch of 2 rows: a, b>"
        assert batch.mask is None

    def test_many_columns_are_counted(self) -> None:
        batch = self.batch(**{f"c{number}": np.arange(2) for number in range(11)})
        assert repr(batch).endswith("c6, c7 and 3 more>")

    def test_in_a_notebook(self) -> None:
        batch = self.batch(**{"<a>": np.arange(2), "b": BytesColumn.of([b"x", b"y"])})
        assert batch._ipython_key_completions_() == ["<a>", "b"]
        table = batch._repr_html_()
        assert "&lt;a&gt;" in table
        assert "bytes [2]" in table

    def test_it_is_not_moved_to_a_device(self) -> None:
        with pytest.raises(ConfigError, match=r"adapters\.torch\.as_loader.*to_torch\(\)\.to\("):
            self.batch(a=np.arange(2)).to("cpu", non_blocking=True)

    def test_attributes_that_it_does_not_have(self) -> None:
        batch = self.batch(a=np.arange(2))
        with pytest.raises(AttributeError, match=r"a column is taken by its name: batch\['a'\]"):
            _ = batch.a  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'head'; its columns are taken by"):
            _ = batch.head  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"only streams of streamrec\.mix"):
            _ = batch.source
        assert not hasattr(batch, "__array__")

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
    def test_it_is_copied(self, again: Any) -> None:
        other = again(self.batch(a=np.arange(2)))
        assert other["a"].tolist() == [0, 1]
        assert other.rows == 2
        assert pickle.loads(pickle.dumps(other)).rows == 2

    def test_raw_records(self) -> None:
        records = BytesColumn.of([b"a", b"b"])
        assert self.batch(records=records).records is records

    def test_a_parsed_batch_has_no_raw_records(self) -> None:
        with pytest.raises(AttributeError, match="has no raw records"):
            _ = self.batch(records=np.arange(2)).records


@pytest.mark.parametrize(("module", "kind"), [("position", Position), ("fingerprint", Fingerprint)])
def test_what_earlier_versions_pickled_with_a_batch_is_found(module: str, kind: type) -> None:
    assert pickle.loads(f"cstreamrec.plan.{module}\n{kind.__name__}\n.".encode()) is kind
