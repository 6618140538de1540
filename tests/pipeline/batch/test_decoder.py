from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec import kernel
from streamrec.errors import ConfigError, FunctionFailed, MissingFeature, OutOfMemory
from streamrec.formats.examples.descriptions import USUAL_GROWTH, describe
from streamrec.formats.examples.example import SequenceExample, encode_example
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import FixedLenFeature, FixedLenSequenceFeature, RaggedFeature
from streamrec.formats.images.image import encode_png
from streamrec.kernel.contract import fresh
from streamrec.pipeline.batch.decoder import Chunk, Decoder, blank, is_padded
from streamrec.pipeline.batch.functions import Function, Functions
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, size_of
from streamrec.values.record_rows import RecordRows
from tests.pipeline.user_functions import raise_key_error, squared, summed

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.values.columns import ByteArray

pytestmark = pytest.mark.both_kernels

POSITION = Position.start(
    Fingerprint("0" * 16, 1, "shard", 1, False, 0, 0, None), [0], rank=0, world_size=1
)


def chunk(records: list[bytes]) -> Chunk:
    rows = RecordRows.of(records)
    n = len(records)
    return Chunk.of(rows, np.arange(n), np.arange(5, 5 + n))


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


SEQUENCE = ({"id": FixedLenFeature((), "int32")}, {"x": FixedLenSequenceFeature((), "float32")})


def sequence_example(number: int, steps: list[float]) -> bytes:
    message = SequenceExample()
    message.context.feature["id"].int64_list.value.append(number)
    features = message.feature_lists.feature_list["x"].feature
    for step in steps:
        features.add().float_list.value.append(step)
    return bytes(message.SerializeToString())


def test_sequence_examples() -> None:
    decoder = Decoder(describe(SEQUENCE), ["u"])
    records = [sequence_example(1, [0.5, 1.5]), sequence_example(2, [])]
    batch = decoder.decode(chunk(records), POSITION, None)
    assert batch["id"].tolist() == [1, 2]
    assert batch["x"].tolist() == [[0.5, 1.5], [0.0, 0.0]]
    assert batch["x/length"].tolist() == [2, 0]


def test_single_records_do_not_depend_on_those_beside_them() -> None:
    decoder = Decoder(describe(SEQUENCE), ["u"], single=True)
    records = [sequence_example(1, [0.5, 1.5]), sequence_example(2, [])]
    batch = decoder.decode(chunk(records), POSITION, None)
    assert [row.tolist() for row in batch["x"]] == [[0.5, 1.5], []]


def test_specs_that_contradict_are_refused_at_once() -> None:
    features = describe({"a": FixedLenFeature((), int), "b": RaggedFeature(int, "a")})
    with pytest.raises(ConfigError, match="'a' is needed as fixed int64 and as varlen int64"):
        Decoder(features, ["u"])


def test_examples_and_their_faults_name_the_shard() -> None:
    features = describe({"x": FixedLenFeature((), "int64")})
    decoder = Decoder(features, ["s3://bucket/shard"])
    good = encode_example({"x": 4})
    assert decoder.decode(chunk([good]), POSITION, None)["x"].tolist() == [4]
    with pytest.raises(MissingFeature) as caught:
        decoder.decode(chunk([good, encode_example({"y": 4})]), POSITION, None)
    assert (caught.value.url, caught.value.record) == ("s3://bucket/shard", 1)


def test_the_size_of_a_batch_is_that_of_its_pictures() -> None:
    rows = chunk([bytes(10), bytes(30)])
    assert Decoder(None, ["u"]).size(rows) == 40
    assert Decoder(describe({"a": FixedLenFeature((), int)}), ["u"]).size(rows) == 40
    assert Decoder(describe({"a": Image((4, 5))}), ["u"]).size(rows) == 40 + 2 * 60
    assert Decoder(describe({"a": Image()}), ["u"]).size(rows) == 40 * USUAL_GROWTH


def test_the_size_of_a_batch_follows_those_that_were_decoded() -> None:
    rows = chunk([encode_example({"a": [7] * 512})] * 64)  # a byte each becomes eight
    decoder = Decoder(describe({"a": FixedLenFeature((512,), int)}), ["u"])
    assert decoder.size(rows) == rows.nbytes
    batch = decoder.decode(rows, POSITION, None)
    assert decoder.size(rows) >= batch["a"].nbytes == 64 * 512 * 8
    assert decoder.size(chunk([b"x" * 100])) > 700


def test_the_size_of_a_batch_follows_the_least_record() -> None:
    """A record of one byte, and where it ends: 17 bytes for each."""
    decoder = Decoder(None, ["u"])
    assert decoder.size(chunk([b"x"])) == 1
    assert size_of(decoder.decode(chunk([b"x"]), POSITION, None).records) == 17
    assert decoder.size(chunk([b"x", b"yz"])) == 3 * 17


def test_the_size_of_a_column_is_that_of_all_its_arrays() -> None:
    values, splits = np.zeros(4, np.float32), np.array([0, 1, 4])
    assert size_of(values) == 16
    assert size_of(Ragged(values, splits)) == 16 + 24
    assert size_of(BytesColumn.of([b"a", b"bcd"])) == 4 + 24
    assert size_of(Ragged(BytesColumn.of([b"a", b"bcd"]), splits)) == 4 + 24 + 24
    assert size_of(Arrays(values, splits, np.zeros((2, 3), np.int64))) == 16 + 24 + 48
    assert size_of(Sparse(np.zeros((4, 2), np.int64), values, (2, 3))) == 64 + 16


def test_pictures_are_shared_out() -> None:
    numbers: list[int] = []

    def share(work: Callable[[int], None], count: int, _at_once: int) -> None:
        for number in reversed(range(count)):
            numbers.append(number)
            work(number)

    arrays = [np.full((1, 2, 3), k, np.uint8) for k in range(3)]
    records = [encode_example({"a": encode_png(array)}) for array in arrays]
    decoder = Decoder(describe({"a": Image((1, 2))}), ["u"], share=share)
    batch = decoder.decode(chunk(records), POSITION, None)
    np.testing.assert_array_equal(batch["a"], np.stack(arrays))
    assert numbers == [2, 1, 0] * 2  # the headers, then the pixels


@pytest.mark.parametrize("shape", [(), (2,), (0,)])
def test_rows_of_nothing_are_as_many_as_are_asked_for(shape: tuple[int, ...]) -> None:
    column = blank(BytesColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), shape), 3)
    assert isinstance(column, BytesColumn)
    assert (len(column), column.item_shape) == (3, shape)


def test_arrays_of_nothing_have_as_many_dimensions() -> None:
    column = blank(Arrays(np.empty(0, "f2"), np.zeros(1, np.int64), np.empty((0, 4), np.int64)), 3)
    assert isinstance(column, Arrays)
    assert [array.shape for array in column] == [(0, 0, 0, 0)] * 3
    assert column[0].dtype == np.float16


class TestAllocate:
    LARGE = 1 << 18
    RECORDS = (encode_example({"a": b"x" * LARGE, "id": 7}),)
    FEATURES = describe({"a": FixedLenFeature((), bytes), "id": FixedLenFeature((), int)})

    def sizes(self, features: dict[str, Any] | None, **options: Any) -> list[int]:
        """Return the sizes that were allocated for a batch."""
        sizes: list[int] = []

        def allocate(size: int) -> ByteArray:
            sizes.append(size)
            return fresh(size)

        decoder = Decoder(features, ["u"], allocate=allocate, **options)
        decoder.decode(chunk(list(self.RECORDS)), POSITION, None)
        return sizes

    @pytest.mark.skipif(kernel.implementation != "native", reason="it has memory of its own")
    def test_large_columns(self) -> None:
        assert self.sizes(self.FEATURES) == [self.LARGE]
        assert self.sizes(None) == [len(self.RECORDS[0])]

    @pytest.mark.parametrize(
        "options",
        [
            {"single": True},
            {"functions": Functions(map=Function("map", dict))},
            {"functions": Functions(transform=Function("transform", dict))},
        ],
        ids=["single", "map", "transform"],
    )
    def test_not_what_others_may_keep(self, options: dict[str, Any]) -> None:
        assert self.sizes(self.FEATURES, **options) == []


class TestFunctions:
    RECORDS = tuple(encode_example({"id": i}) for i in range(4))
    FEATURES = describe({"id": FixedLenFeature((), "int64")})

    def test_map_and_transform_in_that_order(self) -> None:
        functions = Functions(map=Function("map", squared), transform=Function("transform", summed))
        decoder = Decoder(self.FEATURES, ["u"], functions=functions)
        batch = decoder.decode(chunk(list(self.RECORDS)), POSITION, None)
        assert list(batch) == ["sum", "square"]
        assert (batch["sum"].tolist(), batch["square"].tolist()) == ([6] * 4, [0, 1, 4, 9])
        assert batch.next_position is POSITION
        assert batch.origin.records.tolist() == [0, 1, 2, 3]

    def test_they_see_the_padding_of_padded_batches(self) -> None:
        functions = Functions(transform=Function("transform", dict))
        batch = Decoder(self.FEATURES, ["u"], functions=functions).decode(
            chunk(list(self.RECORDS)), POSITION, 2
        )
        assert (len(batch["id"]), batch.rows) == (6, 6)
        assert batch.mask is not None

    def test_failures_name_the_first_record(self) -> None:
        functions = Functions(map=Function("map", raise_key_error))
        with pytest.raises(
            FunctionFailed, match=r"setting map, u, record 0: .*raise_key_error raised"
        ):
            Decoder(self.FEATURES, ["u"], functions=functions).decode(
                chunk(list(self.RECORDS)), POSITION, None
            )


@pytest.mark.parametrize("features", [None, describe({"a": FixedLenFeature((), bytes)})])
def test_where_there_is_no_memory_for_columns(features: dict[str, Any] | None) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("none left")

    decoder, records = Decoder(features, ["u"]), [encode_example({"a": b"x"})] * 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "gather", refuse)
        if features is not None:
            patched.setattr(decoder._parser, "parse", refuse)
        with pytest.raises(OutOfMemory, match="none left") as caught:
            decoder.decode(chunk(records), POSITION, None)
    assert caught.value.fields() == {"url": "u", "record": 0}


@pytest.mark.parametrize(
    ("features", "answer"),
    [
        (None, False),
        ({"a": {"kind": "fixed"}}, False),
        ({"a": {"kind": "fixed"}, "b": {"kind": "varlen"}}, True),
        ({"a": {"kind": "sequence"}}, True),
        ({"context": {}, "sequence": {}}, True),
    ],
)
def test_padded_columns(features: Any, answer: bool) -> None:
    assert is_padded(features) is answer
