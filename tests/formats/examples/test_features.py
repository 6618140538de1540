from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedExample,
    MissingFeature,
    WrongFeatureType,
)
from streamrec.formats.examples import features as module
from streamrec.formats.examples.defaults import RowLengths
from streamrec.formats.examples.descriptions import from_description
from streamrec.formats.examples.example import (
    Feature,
    SequenceExample,
    encode_example,
    encode_sequence_example,
)
from streamrec.formats.examples.features import (
    FeatureParser,
    as_stored,
    infer_features,
    parse_example,
    parse_single_example,
)
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.formats.images.image import encode_png
from streamrec.kernel.contract import FaultCode, KernelFault
from streamrec.kernel.messages import MESSAGES
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows
from tests.data.expected import EXAMPLES, assert_column, records_of
from tests.formats.counted_names import CountedName

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate

pytestmark = pytest.mark.both_kernels

ERRORS = {
    "refused: absent": MissingFeature,
    "refused: unset": MissingFeature,
    "refused: count": WrongFeatureType,
    "refused: empty list": WrongFeatureType,
    "refused: kind": WrongFeatureType,
    "refused: kind, varlen": WrongFeatureType,
    "refused: kind of an empty list": WrongFeatureType,
    "refused: cut short": MalformedExample,
    "refused: no message": MalformedExample,
}
PIECES = "packed in two pieces"


class TestTensorFlow:
    @pytest.mark.parametrize("case", sorted(EXAMPLES.keys() - ERRORS.keys() - {PIECES}))
    def test_parses_what_tensorflow_parses(self, case: str) -> None:
        specs: dict[str, Any] = from_description(EXAMPLES[case]["features"])
        columns = parse_example(records_of(case), specs)
        assert list(columns) == list(specs)
        for name, column in columns.items():
            assert_column(column, EXAMPLES[case]["columns"][name], specs[name].dtype)

    @pytest.mark.parametrize(("case", "error"), ERRORS.items())
    def test_refuses_what_tensorflow_refuses(self, case: str, error: type[DataError]) -> None:
        assert EXAMPLES[case]["columns"] == "InvalidArgumentError"
        specs = from_description(EXAMPLES[case]["features"])
        with pytest.raises(error):
            parse_example(records_of(case), specs)

    def test_reads_all_pieces_of_a_packed_list(self) -> None:
        # protobuf's rule; TensorFlow 2.21 loses what follows the first piece, without a word.
        assert EXAMPLES[PIECES]["columns"]["a"]["values"] == [1, 2]
        specs = from_description(EXAMPLES[PIECES]["features"])
        (record,) = records_of(PIECES)
        assert parse_single_example(record, specs)["a"].tolist() == [1, 2, 3]


RECORD = encode_example({"id": 7, "xy": [0.5, 1.5], "name": "käse", "tags": ["a", "b"]})


class TestParse:
    def test_takes_sequences_arrays_and_columns(self) -> None:
        features = {"id": FixedLenFeature((), int)}
        batches: list[Any] = [
            [RECORD, RECORD],
            (bytearray(RECORD), memoryview(RECORD)),
            np.array([RECORD, RECORD], object),
            BytesColumn.of([RECORD, RECORD]),
        ]
        for batch in batches:
            column = parse_example(batch, features)["id"]
            assert isinstance(column, np.ndarray)
            assert column.tolist() == [7, 7]

    def test_one_record_is_no_batch(self) -> None:
        record: Any = RECORD
        with pytest.raises(ConfigError, match="for one record use parse_single_example"):
            parse_example(record, {"id": FixedLenFeature((), int)})

    def test_single(self) -> None:
        values = parse_single_example(
            RECORD,
            {
                "id": FixedLenFeature((), int),
                "xy": FixedLenFeature((2,), float),
                "name": FixedLenFeature((), bytes),
                "tags": VarLenFeature(bytes),
                "more": VarLenFeature(int),
            },
        )
        assert values["id"] == 7
        assert values["xy"].tolist() == [0.5, 1.5]
        assert values["name"] == "käse".encode()
        assert values["tags"] == [b"a", b"b"]
        assert values["more"].tolist() == []

    @pytest.mark.parametrize(
        "parse", [lambda: parse_example([RECORD], {}), lambda: parse_single_example(RECORD, {})]
    )
    def test_no_features_are_refused_as_by_tensorflow(self, parse: Any) -> None:
        with pytest.raises(ConfigError, match="features names no feature"):
            parse()

    @pytest.mark.parametrize("shape", [(), (1, 1)])
    def test_an_array_of_records_has_one_dimension(self, shape: tuple[int, ...]) -> None:
        records = np.array([RECORD], object).reshape(shape)
        with pytest.raises(ConfigError, match="must be a batch of records"):
            parse_example(records, {"id": FixedLenFeature((), "int64")})

    def test_wrong_specs_are_named(self) -> None:
        with pytest.raises(ConfigError, match="feature 'id'"):
            parse_example([RECORD], {"id": "int64"})


class TestErrors:
    def rows(self, record: bytes) -> RecordRows:
        """Two rows of two shards, far along in each."""
        rows = RecordRows.of([RECORD, record])
        shards, ordinals = np.array([4, 5], np.int32), np.array([100, 200])
        return RecordRows(
            rows.buffers, rows.buffer_index, rows.offsets, rows.lengths, shards, ordinals
        )

    @pytest.mark.parametrize(
        ("record", "name", "spec", "kind", "message"),
        [
            (
                encode_example({"label": 1, "image": b""}),
                "lable",
                FixedLenFeature((), int, None),
                MissingFeature,
                "no such feature (did you mean 'label'?); correct the name, give the spec a "
                "default_value, or use VarLenFeature",
            ),
            (
                encode_example({"b": 1, "a": 2}),
                "number",
                FixedLenFeature((), int),
                MissingFeature,
                "no such feature (it has 'a', 'b'); correct the name",
            ),
            (b"", "number", FixedLenFeature((), int), MissingFeature, "feature (it has none)"),
            (
                encode_example({"number": 0.5}),
                "number",
                VarLenFeature(int),
                WrongFeatureType,
                "the record holds float32, but the spec says int64; give the spec the dtype "
                "'float32'",
            ),
            (
                encode_example({"number": [1, 2, 3]}),
                "number",
                FixedLenFeature((2, 2), int),
                WrongFeatureType,
                "the record holds 3 values, but shape (2, 2) takes 4; correct the shape",
            ),
        ],
    )
    def test_says_where_what_and_what_to_do(
        self, record: bytes, name: str, spec: Any, kind: type[DataError], message: str
    ) -> None:
        good = encode_example(
            {
                name: Feature(
                    int64_list=MESSAGES["Int64List"](
                        value=[1] * math.prod(getattr(spec, "shape", ()))
                    )
                )
            }
        )
        rows = RecordRows.of([good, record])
        with pytest.raises(kind) as caught:
            FeatureParser({name: spec}).parse(rows)
        assert caught.value.fields() == {"record": 1, "feature": name}
        assert message in str(caught.value)

    def test_carries_url_and_ordinal(self) -> None:
        features = {"id": FixedLenFeature((), int)}
        with pytest.raises(MissingFeature) as caught:
            FeatureParser(features).parse(self.rows(b""), lambda shard: f"s3://b/{shard}")
        assert caught.value.fields() == {"url": "s3://b/5", "record": 200, "feature": "id"}

    def test_a_malformed_record_has_no_feature(self) -> None:
        with pytest.raises(MalformedExample, match="leave the features out") as caught:
            FeatureParser({"id": FixedLenFeature((), int)}).parse(self.rows(b"\xff"), str)
        assert caught.value.fields() == {"url": "5", "record": 200}


def test_what_is_missing_among_many_features_is_soon_said() -> None:
    CountedName.compared = 0
    count = 1000
    specs: dict[str, Any] = {
        CountedName(f"f{n:03}"): FixedLenFeature((), int) for n in range(count)
    }
    record = encode_example({str(name): 1 for name in specs if name != "f500"} | {"f50O": 1})
    with pytest.raises(MissingFeature, match="did you mean 'f50O'"):
        parse_example([record], specs)
    assert CountedName.compared < 20 * count


class TestFaultsOfARecord:
    """Faults that only a kernel, or a record of 2 GiB, can report."""

    def explained(
        self, fault: KernelFault, monkeypatch: pytest.MonkeyPatch, record: bytes = RECORD
    ) -> DataError:
        parser = FeatureParser({"id": FixedLenFeature((), int)})

        def fail(rows: RecordRows) -> None:
            raise fault

        monkeypatch.setattr(parser._parser, "parse", fail)
        with pytest.raises(DataError) as caught:
            parser.parse(RecordRows.of([RECORD, record]), str)
        assert caught.value.record == 1
        assert caught.value.url == "0"
        return caught.value

    def test_the_place_is_named_where_it_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = self.explained(KernelFault(FaultCode.MALFORMED, 1, None, 17), monkeypatch)
        assert isinstance(error, MalformedExample)
        assert "not a serialized tf.train.Example, which shows at its byte 17; leave" in str(error)

    def test_a_record_that_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        error = self.explained(KernelFault(FaultCode.TOO_LARGE, 1), monkeypatch)
        assert isinstance(error, MalformedExample)
        assert f"has {len(RECORD)} bytes, but a protobuf message has at most 2,147,483,647" in str(
            error
        )

    @pytest.mark.parametrize("record", [RECORD, b"\xff"])
    def test_a_record_of_which_protobuf_thinks_otherwise(
        self, monkeypatch: pytest.MonkeyPatch, record: bytes
    ) -> None:
        error = self.explained(KernelFault(FaultCode.WRONG_KIND, 1, "id"), monkeypatch, record)
        assert isinstance(error, MalformedExample)


class TestInfer:
    def test_sequence_examples_are_recognised(self) -> None:
        message = SequenceExample()
        message.feature_lists.feature_list["x"].feature.add()
        with pytest.raises(ConfigError, match=r"a pair \(context, sequence\)"):
            infer_features([message.SerializeToString()])

    def test_a_field_unknown_is_no_feature_list(self) -> None:
        assert infer_features([encode_example({"a": 1}) + b"\x12\x01x"]) == {
            "a": FixedLenFeature((), int)
        }

    @pytest.mark.parametrize(
        "records",
        [
            [{"a": 1, "b": 1, "c": 1, "d": 1}],
            [{"a": 1, "b": 1}, {"c": 1, "d": 1}],
        ],
        ids=["in one record", "in all together"],
    )
    def test_too_many_features_are_refused(
        self, records: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_FEATURES", 4)
        encoded = [encode_example(record) for record in records]
        assert len(infer_features(encoded)) == 4
        monkeypatch.setattr(module, "MOST_FEATURES", 3)
        with pytest.raises(
            ConfigError, match=f"record {len(records) - 1}: .* are 4, .* name those"
        ):
            infer_features(encoded)

    def test_a_hundred_thousand_are_refused_before_one_is_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        features = MagicMock()
        features.__len__.return_value = 100_000
        monkeypatch.setattr(module, "_read", lambda record: features)
        with pytest.raises(ConfigError, match="there are 100,000"):
            infer_features([b""])
        assert not features.items.called

    def test_constant_counts_are_fixed(self) -> None:
        assert infer_features([RECORD, RECORD]) == {
            "id": FixedLenFeature((), int),
            "name": FixedLenFeature((), bytes),
            "tags": FixedLenFeature((2,), bytes),
            "xy": FixedLenFeature((2,), float),
        }

    def test_what_varies_is_varlen(self) -> None:
        records = [
            encode_example({"sometimes": 1, "counts": [1], "empty": np.array([]), "unset": []}),
            encode_example({"counts": [1, 2], "empty": np.array([]), "unset": []}),
        ]
        assert infer_features(iter(records)) == {
            "counts": VarLenFeature(int),
            "empty": VarLenFeature(float),
            "sometimes": VarLenFeature(int),
        }

    def test_appearing_late_is_varlen(self) -> None:
        records = [b"", encode_example({"a": 1})]
        assert infer_features(records) == {"a": VarLenFeature(int)}

    @given(
        st.lists(
            st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=3)),
            min_size=1,
        )
    )
    def test_what_it_finds_parses(self, values: list[dict[str, list[int]]]) -> None:
        records = [encode_example(value) for value in values]
        parser = FeatureParser(infer_features(records))
        columns: dict[str, Any] = dict(parser.parse(RecordRows.of(records)))
        for name, column in columns.items():
            for row, value in zip(column, values, strict=True):
                assert np.atleast_1d(row).tolist() == value.get(name, [])

    def test_pictures_are_known_by_their_first_bytes(self) -> None:
        picture = encode_png(np.zeros((2, 2, 3), np.uint8))
        records = [
            encode_example(
                {
                    "photo": picture,
                    "webp": b"RIFF1234WEBPVP8L",
                    "some": picture if k else b"text",
                    "other": b"\0\0\0\x20ftypavif",
                    "frames": [picture, picture],
                    "word": b"BM"[:k],
                }
            )
            for k in range(2)
        ]
        encoded = FixedLenFeature((), bytes)
        assert infer_features(records) == {
            "photo": Image(),
            "webp": Image(channels=0),
            "some": encoded,
            "other": encoded,
            "frames": FixedLenFeature((2,), bytes),
            "word": encoded,
        }
        assert as_stored(infer_features(records))["photo"] == encoded

    def test_a_change_of_kind_is_an_error(self) -> None:
        records = [encode_example({"a": 1}), encode_example({"a": "x"})]
        with pytest.raises(
            WrongFeatureType, match="holds bytes, but held int64 in earlier records"
        ) as caught:
            infer_features(records)
        assert caught.value.fields() == {"record": 1, "feature": "a"}

    def test_junk_is_an_error(self) -> None:
        with pytest.raises(MalformedExample) as caught:
            infer_features([RECORD, b"\xff"])
        assert caught.value.record == 1

    def test_no_records_are_an_error(self) -> None:
        with pytest.raises(ConfigError, match="there are no records"):
            infer_features([])


LENGTHS = RaggedFeature("int64", value_key="n", partitions=[RowLengths("lengths")])


@pytest.mark.parametrize(
    ("features", "is_plain"),
    [
        ({"n": FixedLenFeature([20_000], "int64")}, True),
        ({"n": FixedLenFeature([20_000], "int32")}, True),
        ({"n": VarLenFeature("int64")}, True),
        ({"n": RaggedFeature("int64")}, True),
        ({"n": VarLenFeature("int64"), "lists": LENGTHS}, False),
        ({"s": SparseFeature("n", "n", "int64", 1 << 40)}, False),
        ({"n": VarLenFeature("int64"), "p": Image()}, False),
    ],
)
def test_what_decides_the_form_of_columns_is_in_memory_of_its_own(
    features: dict[str, Any], is_plain: bool
) -> None:
    lent: dict[str, list[int]] = {"columns": [], "scratch": []}

    def lender(name: str) -> Allocate:
        def allocate(size: int) -> npt.NDArray[np.uint8]:
            lent[name].append(size)
            return np.empty(size, np.uint8)

        return allocate

    picture = encode_png(np.zeros((8, 8, 3), np.uint8))
    record = encode_example({"n": np.arange(20_000), "lengths": [20_000], "p": picture})
    parser = FeatureParser(features, allocate=lender("columns"), scratch=lender("scratch"))
    parser.parse(RecordRows.of([record]))
    if kernel.implementation == "native":  # the other one brings its own
        assert (160_000 in lent["columns"], 160_000 in lent["scratch"]) == (is_plain, not is_plain)


FRAMES = encode_sequence_example({"id": "v1"}, {"rgb": [[b"frame 0"], [b"frame 1"]]})


def test_a_spec_of_a_feature_list_is_told() -> None:
    with pytest.raises(MissingFeature, match="one of its feature lists; give features as a pair"):
        parse_example([FRAMES], {"rgb": FixedLenFeature((), bytes)})


def test_a_column_that_stays_empty_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    specs = {"rgb": VarLenFeature(bytes), "id": VarLenFeature(bytes), "no": VarLenFeature(bytes)}
    parser = FeatureParser(specs)
    for _ in range(2):
        columns: dict[str, Any] = parser.parse(RecordRows.of([FRAMES]))
        assert [columns[name].to_list() for name in ("rgb", "id", "no")] == [[[]], [[b"v1"]], [[]]]
    (message,) = caplog.messages
    assert "feature rgb has no value: the record is a SequenceExample" in message


def test_a_fault_names_the_columns_of_a_feature_with_another_name() -> None:
    record = encode_example({"encoded": [b"a", b"b"], "plain": [1, 2]})
    specs = {
        "thumbnail": FixedLenFeature((), "bytes", key="encoded"),
        "plain": FixedLenFeature((2,), "int64"),
    }
    with pytest.raises(WrongFeatureType, match="column 'thumbnail'"):
        parse_single_example(record, specs)
    wrong = {"plain": FixedLenFeature((3,), "int64")}
    with pytest.raises(WrongFeatureType) as caught:
        parse_single_example(record, wrong)
    assert "column" not in caught.value.message
