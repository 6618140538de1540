"""Both forms of the document, written by hand as tensorflow_datasets writes them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.tfds.folder_features import FolderFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "s3://b/mnist/1.0.0/features.json"
PLACE = "tensorflow_datasets.core.features"


def feature(kind: str, key: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{PLACE}.x.{kind}", key: content}


def tensor(*shape: int | None, dtype: str = "float32", **others: Any) -> dict[str, Any]:
    sides = [str(-1 if side is None else side) for side in shape]
    return feature("Tensor", "tensor", shape={"dimensions": sides}, dtype=dtype, **others)


def image(*shape: int, dtype: str = "uint8", kind: str = "Image", **more: Any) -> dict[str, Any]:
    sides = {"dimensions": [str(side) for side in shape]}
    return feature(kind, "image", shape=sides, dtype=dtype, **more)


def sequence(inner: dict[str, Any], length: int = -1, kind: str = "Sequence") -> dict[str, Any]:
    return feature(kind, "sequence", feature=inner, length=str(length))


def features_dict(**features: Any) -> dict[str, Any]:
    return feature("FeaturesDict", "featuresDict", features=features)


def parse(**features: Any) -> FolderFeatures:
    return FolderFeatures.parse(json.dumps(features_dict(**features)).encode(), URL)


LABEL = feature("ClassLabel", "classLabel", numClasses="10")
TEXT = feature("Text", "text")
LENGTHS = sr.RaggedFeature.RowLengths
UNIFORM = sr.RaggedFeature.UniformRowLength


@pytest.mark.parametrize(
    ("described", "spec"),
    [
        (LABEL, sr.FixedLenFeature((), "int64")),
        (TEXT, sr.FixedLenFeature((), "bytes")),
        (tensor(2, 3, dtype="uint8"), sr.FixedLenFeature((2, 3), "uint8")),
        (tensor(dtype="string"), sr.FixedLenFeature((), "bytes")),
        (feature("Scalar", "tensor", dtype="bool"), sr.FixedLenFeature((), "bool")),
        (feature("BBoxFeature", "boundingBox"), sr.FixedLenFeature((4,), "float32")),
        (tensor(None, dtype="int32"), sr.VarLenFeature("int32")),
        (
            tensor(None, 2, 3),
            sr.RaggedFeature("float32", partitions=[UNIFORM(2), UNIFORM(3)]),
        ),
        (
            tensor(2, dtype="uint16", encoding="bytes"),
            sr.FixedLenFeature((2,), "uint16", raw=True),
        ),
        (
            tensor(None, None, 2, encoding="bytes"),
            sr.ShapedFeature("x/shape", "float32", "x/value", raw=True, rank=3),
        ),
        (tensor(dtype="int32", optional=True), sr.FixedLenFeature((), "int32", -(2**31))),
        (tensor(2, dtype="string", optional=True), sr.FixedLenFeature((2,), "bytes", [b"", b""])),
        (image(28, 28, 1), sr.Image((28, 28), channels=1)),
        (image(-1, -1, 3), sr.Image()),
        (image(-1, -1, 1, dtype="uint16"), sr.Image(channels=1, dtype="uint16")),
        (image(4, 5, 1, dtype="float32"), sr.Image((4, 5), channels=1, dtype="float32")),
        (sequence(LABEL), sr.VarLenFeature("int64")),
        (sequence(LABEL, 3), sr.FixedLenFeature((3,), "int64")),
        (sequence(tensor(2)), sr.RaggedFeature("float32", partitions=[UNIFORM(2)])),
        (sequence(image(8, 8, 3)), sr.Image((8, 8), sequence=True)),
        (
            sequence(sequence(tensor(2, dtype="int16"))),
            sr.RaggedFeature(
                "int16",
                "x/ragged_flat_values",
                [LENGTHS("x/ragged_row_lengths_0"), UNIFORM(2)],
            ),
        ),
        (
            feature("Video", "video", shape={"dimensions": ["-1", "6", "5", "3"]}, dtype="uint8"),
            sr.Image((6, 5), sequence=True),
        ),
        (feature("Audio", "audio", shape={"dimensions": ["-1"]}, dtype="int64", encoding="NONE"),
         sr.VarLenFeature("int64")),
    ],
    ids=str,
)  # fmt: skip
def test_a_spec(described: dict[str, Any], spec: Any) -> None:
    features = parse(x=described)
    assert features.check() == {"x": spec}


def test_names_are_paths() -> None:
    observation = features_dict(image=image(8, 8, 3), state=tensor(7))
    steps = sequence(features_dict(observation=observation, reward=tensor()), kind="Dataset")
    pair = feature("Translation", "translation", languages=["en", "fr"])
    many = feature("TranslationVariableLanguages", "translation", languages=["en"])
    assert parse(steps=steps, pair=pair, many=many).check() == {
        "steps/observation/image": sr.Image((8, 8), sequence=True),
        "steps/observation/state": sr.RaggedFeature("float32", partitions=[UNIFORM(7)]),
        "steps/reward": sr.VarLenFeature("float32"),
        "pair/en": sr.FixedLenFeature((), "bytes"),
        "pair/fr": sr.FixedLenFeature((), "bytes"),
        "many/language": sr.VarLenFeature("bytes"),
        "many/translation": sr.VarLenFeature("bytes"),
    }


def test_documents_with_names_of_classes() -> None:
    mask = image(-1, -1, 1, kind="LabeledImage", label={"numClasses": "2"})
    objects = sequence(features_dict(label=LABEL))
    assert parse(label=LABEL, mask=mask, objects=objects, x=TEXT).labels == {
        "label": "label.labels.txt",
        "mask": "mask.labels.txt",
        "objects/label": "objects-label.labels.txt",
    }


def test_the_older_form() -> None:
    def older(kind: str, content: Any) -> dict[str, Any]:
        return {"type": f"{PLACE}.x.{kind}", "content": content}

    document = older(
        "FeaturesDict",
        {
            "image": older("Image", {"shape": [None, None, 3], "dtype": "uint8"}),
            "label": older("ClassLabel", {"num_classes": 10}),
            "ids": older("Sequence", {"feature": older("Text", {}), "length": None}),
            "text": older("Text", '{"use_encoder": true}'),
        },
    )
    features = FolderFeatures.parse(json.dumps(document).encode(), URL)
    assert features.specs == {
        "image": sr.Image(),
        "label": sr.FixedLenFeature((), "int64"),
        "ids": sr.VarLenFeature("bytes"),
    }
    assert "deprecated text encoder" in features.refused["text"]


@pytest.mark.parametrize("write", [json.dumps, dict], ids=["text", "object"])
def test_the_older_form_around_the_newer_one(write: Callable[[Any], Any]) -> None:
    features = {"image": image(-1, -1, 3), "ids": sequence(TEXT), "in": features_dict(x=LABEL)}
    document = {
        "type": f"{PLACE}.features_dict.FeaturesDict",
        "content": write({"features": features}),
        "proto_cls": "tensorflow_datasets.FeaturesDict",
    }
    parsed = FolderFeatures.parse(json.dumps(document).encode(), URL)
    assert parsed == parse(**features)
    assert list(parsed.specs) == ["image", "ids", "in/x"]


@pytest.mark.parametrize(
    ("described", "why"),
    [
        (feature("MyFeature", "tensor"), "is a MyFeature, whose form is not known here"),
        (tensor(dtype="complex64"), "has the dtype 'complex64', which is not read"),
        (tensor(3, None), r"has values of the shape \(3, None\), and only the first size may vary"),
        (tensor(2, encoding="gzip"), "with the encoding 'gzip', which are not made"),
        (sequence(tensor(2, encoding="bytes")), r"in sequences of \(None,\)"),
        (sequence(sequence(image(8, 8, 3))), "holds pictures of the shape"),
        (image(4, 8, 8, 3), "holds pictures of the shape"),
        (tensor(10**15, dtype="int32", optional=True), "takes more values than the longest"),
        (feature("Audio", "audio", lazyDecode=True), "holds encoded audio"),
    ],
    ids=str,
)
def test_a_feature_that_is_not_read(described: dict[str, Any], why: str) -> None:
    features = parse(x=described, label=LABEL)
    assert list(features.specs) == ["label"]
    with pytest.raises(ConfigError, match=rf"feature 'x' of the folder .*{why}"):
        features.check()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"pythonClassName": 3},
        features_dict(x={}),
        features_dict(x={"type": "Text"}),
        features_dict(x=feature("Tensor", "tensor", shape=[math.inf], dtype="int32")),
        features_dict(x=feature("Sequence", "sequence", feature=LABEL, length=math.inf)),
        features_dict(x=feature("Image", "image", shape=[4.5, 4, 3])),
    ],
    ids=str,
)
def test_other_documents_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(MalformedIndex, match=r"not a features\.json"):
        FolderFeatures.parse(json.dumps(document).encode(), URL)
