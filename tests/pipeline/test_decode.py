from __future__ import annotations

import numpy as np
import pytest

from streamrec.errors import MissingFeature
from streamrec.formats.example import encode_example
from streamrec.formats.features import FixedLenFeature, describe
from streamrec.pipeline.batch import Chunk
from streamrec.pipeline.decode import Decoder
from streamrec.plan.position import Fingerprint, Position
from streamrec.types import RecordRows

POSITION = Position.start(
    Fingerprint("0" * 16, 1, "shard", 1, False, 0, 0, None), [0], rank=0, world_size=1
)


def chunk(records: list[bytes]) -> Chunk:
    rows = RecordRows.of(records)
    n = len(records)
    return Chunk(rows, np.zeros(n, np.int64), np.arange(5, 5 + n))


def test_raw_records() -> None:
    batch = Decoder(None, ["u"]).decode(chunk([b"a", b"", b"bc"]), POSITION, None)
    assert batch.records.to_list() == [b"a", b"", b"bc"]
    assert (len(batch), batch.epoch, batch.mask) == (3, 5, None)
    assert batch.origin.records.tolist() == [0, 1, 2]
    assert batch.next_position is POSITION


def test_padding_is_masked_and_has_no_origin() -> None:
    batch = Decoder(None, ["u"]).decode(chunk([b"a", b"b"]), POSITION, 2)
    assert len(batch) == 4
    assert batch.mask is not None
    assert batch.mask.tolist() == [True, True, False, False]
    assert batch.origin.records.tolist() == [0, 1, -1, -1]
    assert batch.origin.shards.tolist() == [0, 0, -1, -1]
    assert batch.records.to_list()[:2] == [b"a", b"b"]


def test_no_padding_where_some_is_possible() -> None:
    batch = Decoder(None, ["u"]).decode(chunk([b"a"]), POSITION, 0)
    assert batch.mask is not None
    assert batch.mask.tolist() == [True]


def test_examples_and_their_faults_name_the_shard() -> None:
    features = describe({"x": FixedLenFeature((), "int64")})
    decoder = Decoder(features, ["s3://bucket/shard"])
    good = encode_example({"x": 4})
    assert decoder.decode(chunk([good]), POSITION, None)["x"].tolist() == [4]
    with pytest.raises(MissingFeature) as caught:
        decoder.decode(chunk([good, encode_example({"y": 4})]), POSITION, None)
    assert (caught.value.url, caught.value.record) == ("s3://bucket/shard", 1)
