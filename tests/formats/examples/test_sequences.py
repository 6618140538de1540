from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError, MalformedExample, MissingFeature
from streamrec.errors import WrongFeatureType as Wrong
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import SequenceExample
from streamrec.formats.examples.features import FeatureParser, parser_of
from streamrec.values.record_rows import RecordRows

pytestmark = pytest.mark.both_kernels


def record(context: dict[str, list[Any]], **lists: list[list[Any] | None]) -> bytes:
    """Return a SequenceExample; a step of ``None`` has no list."""
    message = SequenceExample()
    for name, values in context.items():
        fill(message.context.feature[name], values, [values])
    for name, steps in lists.items():
        features = message.feature_lists.feature_list[name].feature
        for step in steps:
            fill(features.add(), step, steps)
    return bytes(message.SerializeToString())


def fill(feature: Any, values: list[Any] | None, beside: list[list[Any] | None]) -> None:
    """Set a list; an empty one of the kind of those beside it."""
    if values is None:
        return
    some = next(filter(None, [values, *beside]), [0])
    kind = {float: "float_list", bytes: "bytes_list"}.get(type(some[0]), "int64_list")
    getattr(feature, kind).SetInParent()
    getattr(feature, kind).value.extend(values)


RECORDS = [
    record({"id": [1]}, frames=[[0.5, 1.0], [1.5, 2.0]], words=[[b"a", b"b"], [], [b"c"]]),
    record({"id": [2]}, frames=[], words=[None, [b"d"]]),
    record({"id": [3]}, frames=[[2.5, 3.0]]),
]
CONTEXT = {"id": sr.FixedLenFeature((), "uint8")}
SEQUENCE = {
    "frames": sr.FixedLenSequenceFeature((2,), "float16", default_value=-1),
    "words": sr.VarLenFeature(bytes),
}


class TestParse:
    def test_a_batch(self) -> None:
        context, sequences, lengths = sr.parse_sequence_example(RECORDS, CONTEXT, SEQUENCE)
        frames: Any = sequences["frames"]
        assert context["id"].tolist() == [1, 2, 3]  # type: ignore[union-attr]
        assert context["id"].dtype == np.uint8  # type: ignore[union-attr]
        assert frames.dtype == np.float16
        assert frames.tolist() == [
            [[0.5, 1], [1.5, 2]],
            [[-1, -1], [-1, -1]],
            [[2.5, 3], [-1, -1]],
        ]
        assert sequences["words"].to_list() == [  # type: ignore[union-attr]
            [[b"a", b"b"], [], [b"c"]],
            [[], [b"d"]],
            [],
        ]
        assert {name: each.tolist() for name, each in lengths.items()} == {"frames": [2, 0, 1]}

    def test_one_record(self) -> None:
        context, sequences = sr.parse_single_sequence_example(RECORDS[0], CONTEXT, SEQUENCE)
        assert context == {"id": 1}
        assert sequences["frames"].tolist() == [[0.5, 1], [1.5, 2]]
        assert sequences["words"].to_list() == [[b"a", b"b"], [], [b"c"]]
        _, empty = sr.parse_single_sequence_example(RECORDS[1], None, SEQUENCE)
        assert empty["frames"].shape == (0, 2)

    def test_either_part_alone(self) -> None:
        assert sr.parse_sequence_example(RECORDS, CONTEXT).sequences == {}
        assert sr.parse_sequence_example(RECORDS, None, SEQUENCE).context == {}

    def test_steps_of_strings(self) -> None:
        spec = {"a": sr.FixedLenSequenceFeature((), bytes)}
        records = [record({}, a=[[b"x"], [b"y"]]), record({}, a=[])]
        assert sr.parse_sequence_example(records, None, spec).sequences["a"].to_list() == [  # type: ignore[union-attr]
            [b"x", b"y"],
            [b"", b""],
        ]
        assert sr.parse_single_sequence_example(records[0], None, spec)[1]["a"] == [b"x", b"y"]

    def test_a_ragged_feature_with_partitions(self) -> None:
        parts = [sr.RaggedFeature.RowLengths("n")]
        spec = {"r": sr.RaggedFeature("int16", "v", parts), "v": sr.VarLenFeature(int)}
        records = [
            record({}, v=[[1, 2, 3], [], [4]], n=[[1, 2], [], [1]]),
            record({}),
            record({}, v=[[5]], n=[[0, 1]]),
        ]
        columns: Any = sr.parse_sequence_example(records, None, spec).sequences
        assert columns["r"].to_list() == [[[[1], [2, 3]], [], [[4]]], [], [[[], [5]]]]
        assert columns["v"].to_list() == [[[1, 2, 3], [], [4]], [], [[5]]]

    def test_names_of_both_parts(self) -> None:
        both = record({"a": [1]}, a=[[2], [3]])
        specs = {"a": sr.VarLenFeature(int)}
        got: Any = sr.parse_sequence_example([both], specs, specs)
        assert (got.context["a"].to_list(), got.sequences["a"].to_list()) == ([[1]], [[[2], [3]]])

    def test_nothing_asked_for(self) -> None:
        empty: Any
        for empty in (None, {}):
            with pytest.raises(ConfigError, match="neither context_features nor sequence_features"):
                sr.parse_sequence_example(RECORDS, empty, empty)

    def test_one_record_is_no_batch(self) -> None:
        with pytest.raises(ConfigError, match="use parse_single_sequence_example"):
            sr.parse_sequence_example(RECORDS[0], CONTEXT)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "spec", [sr.FixedLenFeature((), int), sr.SparseFeature("i", "v", int, 3)]
    )
    def test_other_specs_are_refused(self, spec: Any) -> None:
        with pytest.raises(ConfigError, match=r"feature 'a' is a feature list, .* use Fixed"):
            sr.parse_sequence_example(RECORDS, None, {"a": spec})

    def test_a_default_of_a_feature_list(self) -> None:
        spec = sr.FixedLenFeature((), int, default_value=0)
        with pytest.raises(ConfigError, match=r"takes no default_value: .*allow_missing=True"):
            sr.parse_sequence_example(RECORDS, None, {"a": spec})


Sequence = sr.FixedLenSequenceFeature


class TestErrors:
    @pytest.mark.parametrize(
        ("bad", "spec", "kind", "words"),
        [
            (record({}), Sequence((), int), MissingFeature, "no such feature list (it has none)"),
            (
                record({}, as_=[]),
                Sequence((), int),
                MissingFeature,
                "(it has 'as_'); correct the name, or give the spec allow_missing=True",
            ),
            (
                record({}, a=[[1], [1.0]]),
                Sequence((), int),
                Wrong,
                "the record holds float32, but the spec says int64; give the spec the dtype "
                "'float32'",
            ),
            (record({}, a=[[1.0]]), sr.VarLenFeature(bool), Wrong, "but the spec says bool"),
            (
                record({}, a=[[1], [1, 2]]),
                Sequence((), int),
                Wrong,
                "step 1 holds 2 values, but shape () takes 1; correct the shape",
            ),
            (record({}, a=[[1], None]), Sequence((), int), Wrong, "step 1 holds 0 values"),
            (record({}, a=[[1], [300]]), Sequence((), "uint8"), Wrong, "holds 300, but uint8 is"),
            (record({}, a=[[1], [2, 2]]), sr.VarLenFeature(bool), Wrong, "holds 2, but bool is 0"),
            (
                record({}, a=[[1]], p=[]),
                sr.RaggedFeature(int, "a", [sr.RaggedFeature.RowLengths("p")]),
                Wrong,
                "does not partition feature 'a': it has another number of steps",
            ),
            (
                record({}, a=[[], [1]], p=[[], [2]]),
                sr.RaggedFeature(int, "a", [sr.RaggedFeature.RowLengths("p")]),
                Wrong,
                "a number is negative, or beyond the values",
            ),
        ],
    )
    def test_feature_lists(self, bad: bytes, spec: Any, kind: type[DataError], words: str) -> None:
        good = record({}, a=[[1], [1]], p=[[1], [1]])
        with pytest.raises(kind) as caught:
            sr.parse_sequence_example([good, bad], None, {"a": spec})
        assert caught.value.record == 1
        assert caught.value.feature in ("a", "p")
        assert words in str(caught.value)

    def test_the_context(self) -> None:
        spec = {"a": sr.FixedLenFeature((), int)}
        with pytest.raises(MissingFeature, match="did you mean 'aa'") as caught:
            sr.parse_sequence_example([record({"aa": [1]}, a=[[1]])], spec)
        assert caught.value.fields() == {"record": 0, "feature": "a"}
        with pytest.raises(Wrong, match="holds 2 values, but shape"):
            sr.parse_sequence_example([record({"a": [1, 2]})], spec)

    def test_a_name_of_both_parts_stands_for_the_wrong_one(self) -> None:
        features = ({"a": sr.VarLenFeature(int)}, {"a": sr.VarLenFeature(int)})
        with pytest.raises(Wrong, match="the record holds float32"):
            sr.parse_sequence_example([record({"a": [1]}, a=[[1.0]])], *features)
        with pytest.raises(Wrong, match="the record holds bytes"):
            sr.parse_sequence_example([record({"a": [b"x"]}, a=[[1.0]])], *features)

    def test_junk(self) -> None:
        parser = FeatureParser((CONTEXT, None))
        rows = RecordRows.of([RECORDS[0], b"\xff"])
        with pytest.raises(MalformedExample, match=r"tf\.train\.SequenceExample") as caught:
            parser.parse(rows, url_of=lambda shard: f"s3://b/{shard}")
        assert caught.value.fields() == {"url": "s3://b/0", "record": 1}


class TestPlainForm:
    def test_all_columns_in_one_mapping(self) -> None:
        plain = describe((CONTEXT, SEQUENCE))
        assert plain is not None
        columns: Any = parser_of(plain).parse(RecordRows.of(RECORDS))
        assert list(columns) == ["id", "frames", "words", "frames/length"]
        assert columns["frames"].shape == (3, 2, 2)
        assert columns["frames/length"].tolist() == [2, 0, 1]

    def test_rows_that_do_not_depend_on_those_beside_them(self) -> None:
        plain = describe((CONTEXT, SEQUENCE))
        assert plain is not None
        columns: Any = parser_of(plain, pad=False).parse(RecordRows.of(RECORDS))
        assert [len(row) for row in columns["frames"]] == [2, 0, 1]
        assert columns["frames"][1].shape == (0, 2)

    def test_examples_too(self) -> None:
        plain = describe({"id": sr.FixedLenFeature((), int)})
        assert plain is not None
        columns: Any = parser_of(plain).parse(RecordRows.of([sr.encode_example({"id": 5})]))
        assert columns["id"].tolist() == [5]


def test_frames_of_bytes() -> None:
    """As YouTube-8M has them: a step is one byte string of so many numbers."""
    frames = np.arange(12, dtype=np.uint8).reshape(3, 4)
    records = [
        sr.encode_sequence_example({}, {"rgb": [frame.tobytes() for frame in some]})
        for some in (frames, frames[:1])
    ]
    spec = sr.FixedLenSequenceFeature((4,), "uint8", raw=True)
    got = sr.parse_sequence_example(records, {}, {"rgb": spec})
    found: Any = got.sequences["rgb"]
    assert found.dtype == np.uint8
    assert found[0].tolist() == frames.tolist()
    assert found[1].tolist() == [frames[0].tolist(), [0] * 4, [0] * 4]
    assert got.lengths["rgb"].tolist() == [3, 1]
    one = sr.parse_single_sequence_example(records[1], {}, {"rgb": spec})[1]["rgb"]
    np.testing.assert_array_equal(one, frames[:1], strict=True)
    two = record({}, rgb=[[b"abcd"], [b"abcd", b"abcd"]])
    with pytest.raises(DataError, match="step 1 holds 2 values, but a raw one takes 1"):
        sr.parse_sequence_example([two], {}, {"rgb": spec})
