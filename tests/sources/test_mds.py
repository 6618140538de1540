from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError
from streamrec.sources import mds as module
from streamrec.sources.mds import open_mds
from tests.sources.mds_writer import write_mds
from tests.sources.test_delimited import records_of

GOLDEN = Path(__file__).parents[1] / "data" / "mds"
COLUMNS = {"image": "jpeg", "label": "int", "tokens": "ndarray:uint16"}


def tokens(count: int) -> bytes:
    return bytes([1 << 2, count]) + np.arange(count, dtype="<u2").tobytes()


def pictures(root: Path, compression: str | None = None) -> Path:
    samples = [
        [picture, np.int64(number).tobytes(), tokens(number + 1)]
        for number, picture in enumerate(sample_pictures())
    ]
    return write_mds(root, COLUMNS, [samples[:5], [], samples[5:]], compression)


SPECS: Any = {
    "image": sr.FixedLenFeature((), bytes),
    "label": sr.FixedLenFeature((), "int64"),
    "tokens": sr.VarLenFeature("int64"),
    "tokens/shape": sr.FixedLenFeature((1,), "int64"),
}


@pytest.mark.parametrize("compression", [None, "zstd:3"])
def test_pictures(compression: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 200_000)
    source = open_mds(str(pictures(tmp_path / "x", compression)))
    assert source.total == 8
    assert len(list(source.pieces())) == (5 if compression is None else 2)
    found = sr.parse_example(records_of(source), SPECS)
    assert found["image"].to_list() == list(sample_pictures())
    assert found["label"].tolist() == list(range(8))
    assert found["tokens"].to_list() == [list(range(n + 1)) for n in range(8)]
    assert found["tokens/shape"].ravel().tolist() == list(range(1, 9))


@pytest.mark.parametrize("scheme", ["", "s3"])
def test_an_index_that_names_shards_in_subdirectories(scheme: str, tmp_path: Path) -> None:
    """Streaming's ``merge_index`` makes such an index of what several writers wrote."""
    place = pictures(tmp_path / "x")
    wanted = records_of(open_mds(str(place)))
    index = json.loads((place / "index.json").read_text())
    for number, shard in enumerate(index["shards"]):
        name = shard["raw_data"]["basename"]
        (place / str(number)).mkdir()
        (place / name).rename(place / str(number) / name)
        shard["raw_data"]["basename"] = f"{number}/{name}"
    (place / "index.json").write_text(json.dumps(index))
    with DevStore() as store:
        for path in filter(Path.is_file, place.rglob("*")):
            store.put(f"bucket/x/{path.relative_to(place)}", path.read_bytes())
        root = "s3://bucket/x" if scheme else str(place)
        for name in (root, f"{root}/index.json"):
            source = open_mds(name, storage_options=store.storage_options)
            assert records_of(source) == wanted


def test_another_key_gives_another_version(tmp_path: Path) -> None:
    place = str(pictures(tmp_path / "x"))
    assert open_mds(place, key="label").identity != open_mds(place).identity


def test_a_dataset_in_a_store(tmp_path: Path) -> None:
    root = pictures(tmp_path / "x")
    with DevStore() as store:
        for path in root.iterdir():
            store.put(f"bucket/x/{path.name}", path.read_bytes())
        for place in ("s3://bucket/x", "s3://bucket/x/", "s3://bucket/x/index.json"):
            source = open_mds(place, storage_options=store.storage_options)
            assert records_of(source) == records_of(open_mds(str(root)))


def test_chosen_features_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(pictures(tmp_path / "x"))
    chosen = open_mds(place, features={"tokens": "bytes", "label": "float32"}, key="label")
    (first, _) = chosen.pieces()
    assert chosen.read(first, lambda _: None).keys == [b"0.0", b"1.0", b"2.0", b"3.0", b"4.0"]
    specs: Any = {"tokens": sr.FixedLenFeature((), bytes)}
    found = sr.parse_example(records_of(chosen), specs)["tokens"]
    assert found[2] == np.arange(3, dtype="<u2").tobytes()
    monkeypatch.chdir(tmp_path / "x")
    for here in ("index.json", "."):
        assert open_mds(here).features == open_mds(place).features
    for features, words in [
        ({"image": "int64"}, "column 'image' is bytes, not int64"),
        ({"no": None}, "has no 'no'; choose among image, label, tokens, tokens/shape"),
    ]:
        with pytest.raises(ConfigError, match=words):
            open_mds(place, features=features)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--key: 'no' is not a feature"):
        open_mds(place, key="no")


def test_wrong_samples_are_named(tmp_path: Path) -> None:
    samples = [[b"0"], [b"x"], [b"2"]]
    place = str(write_mds(tmp_path / "x", {"n": "str_int"}, [samples]))
    errors: list[DataError] = []
    assert len(records_of(open_mds(place), errors.append)) == 2
    (error,) = errors
    words = "shard.00000.mds: sample 1: column 'n' holds 'x', which is not int64"
    assert words in str(error)
    with pytest.raises(DataError, match="sample 0: column 'n' does not"):
        open_mds(str(write_mds(tmp_path / "y", {"n": "ndarray"}, [[[b"x"]]])))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no index\.json"):
        open_mds(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sample in it"):
        open_mds(str(write_mds(tmp_path / "x", {"n": "str"}, [[]])))
    pickled = str(write_mds(tmp_path / "y", {"n": "str", "p": "pkl"}, [[[b"n", b"p"]]]))
    with pytest.raises(ConfigError, match=r"'p' is of the type 'pkl', .* with --features n, or"):
        open_mds(pickled)
    with pytest.raises(ConfigError, match="'p' is of the type 'pkl'"):
        open_mds(pickled, features={"p": None})
    assert open_mds(pickled, features={"n": None}).features == {"n": "bytes"}


def test_what_streaming_wrote() -> None:
    """Made by ``tests/data/make_mds.py``."""
    source = open_mds(str(GOLDEN))
    assert len(source.shards) > 1
    kinds: dict[str, Any] = dict(source.features)
    specs: Any = {name: sr.VarLenFeature(kind) for name, kind in kinds.items()}
    columns: Any = sr.parse_example(records_of(source), specs)
    for picture in columns["png"].values.to_list():
        assert sr.decode_image(picture).shape == (3, 4, 3)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    assert expected.keys() == columns.keys() - {"png"}
    for name, values in expected.items():
        texts = [[text_of(value) for value in row] for row in columns[name].to_list()]
        assert texts == values, name


def text_of(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value
