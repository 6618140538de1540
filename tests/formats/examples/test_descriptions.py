from __future__ import annotations

import json
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import (
    as_python,
    describe,
    dtype_names,
    from_description,
    is_pair,
    narrow,
)
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    ShapedFeature,
    SparseFeature,
    VarLenFeature,
)
from tests.formats.counted_names import CountedName
from tests.formats.spec_strategies import FEATURES, STEPS

NARROWED = {
    "tokens": sr.RaggedFeature("int64"),
    "label": sr.FixedLenFeature((), "int64", default_value=-1),
    "weight": sr.VarLenFeature("float32"),
    "name": sr.FixedLenFeature((), bytes),
    "grid": sr.FixedLenFeature((2,), "int64", raw=True),
    "shaped": sr.ShapedFeature(("n",), "int16", raw=True),
    "picture": sr.Image(),
}


def dtypes_of(specs: Any) -> dict[str, str]:
    return {name: spec.dtype for name, spec in specs.items() if hasattr(spec, "dtype")}


def changed(dtypes: Any, features: Any = NARROWED) -> Any:
    plain = describe(features)
    assert plain is not None
    return from_description(narrow(plain, dtype_names(dtypes)))


def test_one_is_for_all_features_that_hold_such_numbers() -> None:
    found = dtypes_of(changed(np.int32))
    assert found == {**dtypes_of(NARROWED), "tokens": "int32", "label": "int32"}


def test_two_are_for_integers_and_for_floats() -> None:
    found = dtypes_of(changed(["int32", "float16"]))
    assert (found["label"], found["weight"], found["name"]) == ("int32", "float16", "bytes")


def test_a_name_is_for_its_feature_alone() -> None:
    found = dtypes_of(changed({"tokens": "uint16"}))
    assert found == {**dtypes_of(NARROWED), "tokens": "uint16"}


def test_fixed_size_bytes_keep_their_dtype() -> None:
    assert changed("int32")["grid"].dtype == "int64"
    assert changed("int32")["shaped"].dtype == "int16"


def test_the_other_arguments_stay() -> None:
    assert changed("int32")["label"] == sr.FixedLenFeature((), "int32", default_value=-1)
    assert changed("int32")["picture"] == sr.Image()


def test_a_pair_is_narrowed_in_both_parts() -> None:
    pair = ({"id": sr.FixedLenFeature((), "int64")}, {"x": sr.VarLenFeature("int64")})
    found = changed({"id": "int32", "x": "uint8"}, pair)
    assert (found.context["id"].dtype, found.sequence["x"].dtype) == ("int32", "uint8")


def test_twice_is_as_once() -> None:
    plain = describe(NARROWED)
    assert plain is not None
    once = narrow(plain, ["int32"])
    assert narrow(once, ["int32"]) == once


@pytest.mark.parametrize(
    ("dtypes", "says"),
    [
        ("int23", "did you mean 'int32'"),
        (["int32", "uint8"], "of which two are for the same features"),
        ({"lable": "int32"}, "'lable', but the features are 'grid', 'label'"),
        ({"label": "float16"}, "'label' the dtype 'float16', but it holds int64"),
        ({"name": "int32"}, "'name' the dtype 'int32', but it holds bytes"),
        ({"name": "bytes"}, "'name' the dtype 'bytes', but it holds bytes"),
        ({"picture": "int32"}, "'picture' the dtype 'int32', but it holds pictures"),
        ({"grid": "int32"}, "'grid' the dtype 'int32', but it holds int64"),
        ({"label": "uint8"}, "label"),  # its default, -1, does not fit
    ],
)
def test_what_cannot_be_is_refused(dtypes: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(dtypes)


pytestmark = pytest.mark.both_kernels

RAGGED = {"kind": "ragged", "dtype": "int64"}


class TestPlainForm:
    @given(features=FEATURES)
    def test_round_trip(self, features: dict[str, Any]) -> None:
        plain = describe(features)
        assert plain is not None
        assert from_description(json.loads(json.dumps(plain))) == features

    def test_raw_records_have_none(self) -> None:
        assert describe(None) is None

    def test_reads_well(self) -> None:
        features = {
            "a": FixedLenFeature((), int),
            "b": FixedLenFeature((2,), bytes, ["ü", b"\xff"]),
            "c": VarLenFeature(float),
        }
        plain = {
            "a": {"kind": "fixed", "shape": [], "dtype": "int64"},
            "b": {
                "kind": "fixed",
                "shape": [2],
                "dtype": "bytes",
                "default": ["ü", {"base64": "/w=="}],
            },
            "c": {"kind": "varlen", "dtype": "float32"},
        }
        assert describe(features) == plain
        assert from_description(plain) == features

    def test_comes_from_toml(self) -> None:
        plain = tomllib.loads(
            """
            image = { dtype = "bytes" }
            label = { kind = "fixed", shape = [], dtype = "int64", default = -1 }
            tokens = { kind = "varlen", dtype = "int64" }
            frames = { kind = "sequence", shape = [2], dtype = "float16", allow_missing = true }
            pixels = { shape = [2, 2], dtype = "uint8", raw = true }
            words = { kind = "ragged", dtype = "bytes", partitions = [
                { row_lengths = "n" }, { uniform_row_length = 2 },
            ] }
            hot = { kind = "sparse", index_key = "i", value_key = "v", dtype = "bool", size = 9 }
            grid = { kind = "shaped", shape = ["h", "w", 3], dtype = "uint8", raw = true }
            volume = { kind = "shaped", shape = "size", rank = 3, dtype = "int64" }
            photo = { kind = "image" }
            thumb = { kind = "image", shape = [32, 32], channels = 1 }
            small = { kind = "image", resize = [8, 9], dct_method = "INTEGER_ACCURATE" }
            part = { kind = "image", crop = [0, 1, 8, 9] }
            """
        )
        assert from_description(plain) == {
            "image": FixedLenFeature((), bytes),
            "label": FixedLenFeature((), int, -1),
            "tokens": VarLenFeature(int),
            "frames": FixedLenSequenceFeature((2,), "float16", allow_missing=True),
            "pixels": FixedLenFeature((2, 2), "uint8", raw=True),
            "words": RaggedFeature(
                bytes, None, [RaggedFeature.RowLengths("n"), RaggedFeature.UniformRowLength(2)]
            ),
            "hot": SparseFeature("i", "v", bool, 9),
            "grid": ShapedFeature(("h", "w", 3), "uint8", raw=True),
            "volume": ShapedFeature("size", "int64", rank=3),
            "photo": Image(),
            "thumb": Image((32, 32), 1),
            "small": Image(resize=(8, 9), dct_method="INTEGER_ACCURATE"),
            "part": Image(crop=(0, 1, 8, 9)),
        }

    @pytest.mark.parametrize(
        ("plain", "message"),
        [
            ({"a": {"kind": "fixd", "dtype": "int64"}}, "no kind 'fixd'; did you mean 'fixed'"),
            ({"a": {"kind": "?", "dtype": "int64"}}, "there are fixed, sequence, varlen, ragged"),
            ({"a": {"kind": [], "dtype": "int64"}}, "no kind"),
            ({"a": {"image": True}}, "there is no key 'image'; write kind = \"image\""),
            ({"a": {"dtyp": "int64"}}, "no key 'dtyp'; did you mean 'dtype'"),
            ({"a": {"kind": "varlen", "dtype": "int64", "shape": []}}, "no key 'shape'"),
            ({"a": {"kind": "fixed"}}, "the key 'dtype' is missing"),
            (
                {"a": {"dtype": "int46"}},
                "feature 'a': no feature can have the dtype 'int46'.* 'int64'",
            ),
            ({"a": {"dtype": "int64", "shape": [-1]}}, "feature 'a': shape"),
            ({"a": {"dtype": "bytes", "default": {"base64": "?"}}}, "feature 'a'"),
            ({"a": "int64"}, "a table with kind and dtype"),
            ({3: {"dtype": "int64"}}, "name must be a str"),
            ([], "features must be a table"),
            ({"a": {"kind": "sparse", "dtype": "int64"}}, "the key 'index_key' is missing"),
            ({"a": {**RAGGED, "partitions": [{"row_split": "s"}]}}, "did you mean 'row_splits'"),
            ({"a": {**RAGGED, "partitions": ["s"]}}, "a partition must be a table such as"),
            ({"a": {**RAGGED, "partitions": "s"}}, "partitions must be a list"),
            ({"a": {**RAGGED, "partitions": [{"uniform_row_length": 0}]}}, "from 1 to"),
            ({"a": {"dtype": "int64", "raw": 3}}, "raw must be True or False"),
            (
                {"a": {"kind": "image", "dtype": "int8"}},
                "dtype must be one of uint8",
            ),
            ({"a": {"kind": "image", "default": 3}}, "no key 'default'; there are kind, shape"),
            ({"a": {"kind": "image", "shape": []}}, "feature 'a': a picture's shape must be"),
        ],
    )
    def test_faults_name_the_feature(self, plain: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            from_description(plain)


class TestPairs:
    @given(context=FEATURES, sequence=STEPS)
    def test_round_trip(self, context: Any, sequence: Any) -> None:
        plain = json.loads(json.dumps(describe((context, sequence))))
        assert is_pair(plain)
        assert from_description(plain) == (context, sequence)

    @given(features=FEATURES)
    def test_features_are_never_taken_for_a_pair(self, features: dict[str, Any]) -> None:
        assert not is_pair(describe(features))

    def test_features_named_context_and_sequence_are_no_pair(self) -> None:
        features = {"context": VarLenFeature(int), "sequence": FixedLenFeature((), int)}
        plain = describe(features)
        assert plain is not None
        assert not is_pair(plain)
        assert from_description(plain) == features

    def test_features_of_pictures_are_no_pair(self) -> None:
        assert not is_pair(describe({"context": Image(), "sequence": Image()}))

    def test_comes_from_toml(self) -> None:
        plain = tomllib.loads(
            """
            context.dtype = { dtype = "bytes" }
            sequence.frames = { kind = "sequence", dtype = "float32" }
            """
        )
        assert is_pair(plain)
        assert from_description(plain) == (
            {"dtype": FixedLenFeature((), bytes)},
            {"frames": FixedLenSequenceFeature((), float)},
        )

    def test_many_names_are_each_looked_at_a_few_times(self) -> None:
        names = [CountedName(f"f{number}") for number in range(1000)]
        CountedName.compared = 0
        describe((None, dict.fromkeys(names, VarLenFeature(int))))
        assert CountedName.compared < 20 * len(names)

    def test_either_part_may_lack(self) -> None:
        assert describe((None, {})) == {"context": {}, "sequence": {}}
        assert is_pair({"sequence": {}})
        assert from_description({"sequence": {}}) == ({}, {})

    @pytest.mark.parametrize(
        ("context", "sequence", "name"),
        [
            (VarLenFeature(int), {"a": VarLenFeature(int)}, "a"),
            (VarLenFeature(int), {"a": FixedLenSequenceFeature((), int)}, "a"),
        ],
    )
    def test_two_columns_of_one_name(self, context: Any, sequence: Any, name: str) -> None:
        with pytest.raises(ConfigError, match="feature 'a': the context and the sequence both"):
            describe(({"a": context}, sequence))
        plain = {"context": describe({"a": context}), "sequence": describe(sequence)}
        with pytest.raises(ConfigError, match="leave one of them out"):
            from_description(plain)

    def test_the_lengths_have_a_name_too(self) -> None:
        pair = ({"a/length": VarLenFeature(int)}, {"a": FixedLenSequenceFeature((), int)})
        with pytest.raises(ConfigError, match="feature 'a/length': the context"):
            describe(pair)

    @pytest.mark.parametrize("features", [({},), ({}, {}, {}), [{}]])
    def test_what_is_no_pair(self, features: Any) -> None:
        with pytest.raises(ConfigError, match=r"a pair \(context, sequence\)"):
            describe(features)

    def test_faults_name_the_feature(self) -> None:
        with pytest.raises(ConfigError, match="feature 'x': there is no kind"):
            from_description({"sequence": {"x": {"kind": "steps", "dtype": "int64"}}})


class TestAsPython:
    def test_reads_well(self) -> None:
        features: dict[str, Any] = {
            "id": FixedLenFeature((), "int64"),
            "x y": VarLenFeature(bytes),
            "photo": Image(resize=(2, 3), dct_method="INTEGER_FAST"),
        }
        assert as_python(features) == (
            "features = {\n"
            "    'id': sr.FixedLenFeature((), 'int64'),\n"
            "    'x y': sr.VarLenFeature('bytes'),\n"
            "    'photo': sr.Image(resize=(2, 3), dct_method='INTEGER_FAST'),\n"
            "}"
        )

    @given(features=FEATURES)
    def test_what_is_inferred_evaluates_to_the_same(self, features: dict[str, Any]) -> None:
        scope: dict[str, Any] = {"sr": sr}
        inferred = {
            name: spec
            for name, spec in features.items()
            if isinstance(spec, VarLenFeature)
            or (isinstance(spec, FixedLenFeature) and spec.default_value is None and not spec.raw)
        }
        exec(as_python(inferred), scope)
        assert scope["features"] == inferred
