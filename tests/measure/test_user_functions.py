from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec import encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.sample import blocks_of
from streamrec.measure.user_functions import UserFunctions
from streamrec.pipeline.batch.decoder import Decoder
from streamrec.pipeline.batch.functions import Function, Functions
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.shard_order import Extent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.pipeline.batch.batch import Batch

pytestmark = pytest.mark.both_kernels

FEATURES = {"id": {"kind": "fixed", "dtype": "int64"}}


def test_where_nothing_is_left_no_function_is_called() -> None:
    def nothing(columns: Mapping[str, Any]) -> Any:
        return columns["id"] < 0

    def never(columns: Any) -> Any:
        raise AssertionError(columns)

    functions = Functions(
        Function("filter", nothing), Function("map", never), Function("transform", never)
    )
    content = frame(encode_example({"id": [1]}))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(FEATURES, ["x"])) as decoder:
        span = RecordSpan.of(Extent(0, 0, 0), block)
        assert UserFunctions(functions, FEATURES, ["x"], decoder).seconds(span) > 0


def test_a_filter_alone_needs_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(Function("filter", lambda columns: columns["id"] > 0))
    content = frame(encode_example({"id": [1]}))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(FEATURES, ["x"])) as decoder:
        monkeypatch.setattr(decoder, "columns", None)
        span = RecordSpan.of(Extent(0, 0, 0), block)
        assert UserFunctions(functions, FEATURES, ["x"], decoder).seconds(span) > 0


def test_each_function_gets_what_the_one_before_it_gave() -> None:
    seen: list[Any] = []

    def is_even(columns: Mapping[str, Any]) -> Any:
        return columns["id"] % 2 == 0

    def tenfold(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {"tens": columns["id"] * 10}

    def look(batch: Batch) -> dict[str, Any]:
        seen.append((len(batch), batch["tens"].tolist(), batch.origin.records.tolist()))
        return dict(batch)

    functions = Functions(
        Function("filter", is_even), Function("map", tenfold), Function("transform", look)
    )
    content = b"".join(frame(encode_example({"id": [number]})) for number in range(5))
    (block,) = blocks_of("x", np.frombuffer(content, np.uint8), check_crc=True, most=1000)
    with closing(Decoder(FEATURES, ["x"])) as decoder:
        users = UserFunctions(functions, FEATURES, ["x"], decoder)
        assert users.seconds(RecordSpan.of(Extent(0, 0, 0), block)) > 0
    assert seen == [(3, [0, 20, 40], [0, 2, 4])]
