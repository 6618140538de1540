"""Streams over TFDS folders that are written here; those of TFDS itself are in tests/formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, MalformedIndex, ObjectNotFound, OtherDataset, StaleIndex
from tests.by_day import each_once, stops
from tests.feeder.support import serving
from tests.pipeline.made_folders import LENGTHS, ids_of, make_folder
from tests.pipeline.small_datasets import settings_of, write_index

if TYPE_CHECKING:
    from streamrec.streams.stream import Stream

FEW: dict[str, Any] = {
    "memory_budget": "32MiB",
    "shuffle_window": 4000,
    "max_concurrency": 8,
    "engine": "thread",
}
SPLITS = {
    "train": ids_of("train"),
    "train[3:13]": ids_of("train")[3:13],
    "train[5:6]": ids_of("train")[5:6],
    "test+train[:2]": [*ids_of("test"), *ids_of("train")[:2]],
    "train[9:]+train[8:12]": [*ids_of("train")[9:], *ids_of("train")[8:12]],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.fixture
def indexed(folder: Path) -> Path:
    for split in LENGTHS:
        write_index(f"{folder}/made-{split}.tfrecord*", 120)  # a few records in each chunk
    return folder


def opened(folder: Path | str, split: str, **settings: Any) -> Stream[Any]:
    return sr.open(folder, split=split, **{"batch_size": 2, **FEW, **settings})


def ids(batches: Any) -> list[int]:
    rows = [batch["id"] if batch.mask is None else batch["id"][batch.mask] for batch in batches]
    return [number for some in rows for number in some.tolist()]


def read(folder: Path | str, split: str, **settings: Any) -> list[int]:
    with opened(folder, split, **settings) as stream:
        return ids(stream)


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_its_records_in_order(folder: Path, split: str) -> None:
    assert read(folder, split, lanes=1) == SPLITS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_a_shuffle_has_each_record_once(folder: Path, split: str) -> None:
    assert sorted(read(folder, split, shuffle=True)) == sorted(SPLITS[split])


@pytest.mark.parametrize(("split", "shuffle", "lanes"), each_once([*SPLITS], [False, True], [1, 3]))
def test_with_an_index_a_split_has_each_record_once(
    indexed: Path, split: str, shuffle: bool, lanes: int
) -> None:
    lanes = min(lanes, len(SPLITS[split]))
    found = read(indexed, split, index=True, lanes=lanes, shuffle=shuffle)
    assert sorted(found) == sorted(SPLITS[split])
    if lanes == 1 and not shuffle:
        assert found == SPLITS[split]


@pytest.mark.parametrize("index", [None, True])
def test_counts_are_known(indexed: Path, index: bool | None) -> None:
    with opened(indexed, "train[3:14]", index=index, epochs=3) as stream:
        assert len(stream) == 17  # of 33 records
        assert len(list(stream)) == 17
    with opened(indexed, "train", index=index, remainder="drop", batch_size=5) as stream:
        assert len(stream) == 3


@pytest.mark.parametrize("index", [None, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resume_goes_on_at_each_step(indexed: Path, index: bool | None, shuffle: bool) -> None:
    settings: dict[str, Any] = {"index": index, "shuffle": shuffle, "shuffle_window": 200}
    whole = read(indexed, "train[3:13]+test[1:]", epochs=2, **settings)
    for stop in stops(range(1, 12)):
        with opened(indexed, "train[3:13]+test[1:]", epochs=2, **settings) as stream:
            first = ids(sr.take(stream, stop))
            state = json.loads(json.dumps(stream.state_dict()))
        with opened(indexed, "train[3:13]+test[1:]", epochs=2, **settings) as stream:
            stream.load_state_dict(state)
            assert first + ids(stream) == whole


def test_ranks_share_a_slice(indexed: Path) -> None:
    settings: dict[str, Any] = {"index": True, "lanes": 2, "remainder": "pad", "shuffle": True}
    parts = [read(indexed, "train[3:13]", rank=r, world_size=2, **settings) for r in (0, 1)]
    assert sorted(parts[0] + parts[1]) == SPLITS["train[3:13]"]


@pytest.mark.parametrize("index", [None, True])
def test_a_state_belongs_to_its_split(indexed: Path, index: bool | None) -> None:
    with opened(indexed, "train[3:13]", index=index) as stream:
        next(stream)
        state = stream.state_dict()
    with opened(indexed, "train[3:12]", index=index) as stream:
        with pytest.raises(OtherDataset, match="which of their records split selects"):
            stream.load_state_dict(state)
            next(stream)


def test_a_whole_split_is_the_stream_over_its_shards(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"train": (2, 3)})
    pattern = f"{folder}/made-train.tfrecord*"
    with opened(folder, "train") as one, sr.open(pattern, "infer", batch_size=2, **FEW) as two:
        assert one.fingerprint == two.fingerprint


def test_the_features_are_those_of_the_folder(folder: Path) -> None:
    with opened(folder, "train") as stream:
        batch = next(stream)
    assert sorted(batch) == ["id", "label"]
    assert batch["id"].dtype == np.int32


def test_other_features(folder: Path) -> None:
    (folder / "features.json").unlink()
    features = {"number": sr.FixedLenFeature((), "int64", key="id")}
    with opened(folder, "train", features=features) as stream:
        assert list(next(stream)) == ["number"]
    with (
        pytest.raises(ObjectNotFound, match=r"there is no features\.json here, .* give features"),
        opened(folder, "train") as stream,
    ):
        next(stream)


def test_narrower_dtypes(folder: Path) -> None:
    with opened(folder, "train", dtypes={"id": "uint16"}) as stream:
        assert next(stream)["id"].dtype == np.uint16


def test_a_mix_of_folders(tmp_path: Path) -> None:
    one, two = make_folder(tmp_path, name="one"), make_folder(tmp_path, name="two")
    components = {"one": (one, 0.5), "two": (two, 0.5)}
    split = {"one": "train[:4]", "two": "test"}
    stream = sr.mix(components, split=split, exhausted="rest", batch_size=2, **FEW)
    with stream:
        assert sorted(ids(stream)) == [*ids_of("train")[:4], *ids_of("test")]


def test_a_mix_of_different_features(tmp_path: Path) -> None:
    one, two = make_folder(tmp_path, name="one"), make_folder(tmp_path, name="two")
    features = (two / "features.json").read_text().replace("int32", "int64")
    (two / "features.json").write_text(features)
    components = {"one": (one, 0.5), "two": (two, 0.5)}
    with (
        pytest.raises(ConfigError, match="component 'two' has another feature 'id'"),
        sr.mix(components, split="train", exhausted="rest", batch_size=2, **FEW) as stream,
    ):
        next(stream)


@pytest.mark.parametrize(
    ("source", "settings", "why"),
    [
        (["a", "b"], {"split": "train"}, "'split' is of one folder, but the source is a list"),
        ("a", {"split": "train["}, r"'split' has the part 'train\["),
        ("a", {"split": {"x": "train"}}, "'split' has a text by name"),
    ],
)
def test_settings_that_do_not_go_together(source: Any, settings: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        sr.open(source, **settings)


def test_a_mix_names_each_component() -> None:
    components = {"one": ("a", 0.5), "two": ("b", 0.5)}
    with pytest.raises(ConfigError, match="the components are one, two; name each of them"):
        sr.mix(components, split={"one": "train"}, epochs=None)


def fails(folder: Path, error: type[Exception], why: str, **settings: Any) -> None:
    with pytest.raises(error, match=why):
        read(folder, **{"split": "train", **settings})


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    fails(tmp_path / "x", ObjectNotFound, r"there is no dataset_info\.json here: with split")


def test_a_split_that_is_not_there(folder: Path) -> None:
    fails(folder, ConfigError, "made has no split 'valid'", split="valid")


def test_a_url_of_a_file_may_be_encoded(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "100% é")
    assert sorted(read(folder.as_uri(), "train")) == ids_of("train")
    assert sorted(read(f"file://{folder}", "train")) == ids_of("train")
    assert sr.tfds_info(folder.as_uri()).splits == {"train": 17, "test": 3}


def test_a_damaged_document(folder: Path) -> None:
    (folder / "dataset_info.json").write_text("{")
    fails(folder, MalformedIndex, "not a JSON object")


@pytest.mark.parametrize("count", ["3", "5"])
def test_another_number_of_records(folder: Path, count: str) -> None:
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace('"4"', f'"{count}"'))
    fails(folder, StaleIndex, f"counts {count} records in this shard, and it has 4")


def test_an_index_of_another_number_of_records(indexed: Path) -> None:
    info = indexed / "dataset_info.json"
    info.write_text(info.read_text().replace('"4"', '"5"'))
    fails(indexed, StaleIndex, "the index counts 4 records in this shard", index=True)


def test_a_shard_that_is_missing(folder: Path) -> None:
    (folder / "made-train.tfrecord-00001-of-00004").unlink()
    fails(folder, ObjectNotFound, "made-train.tfrecord-00001-of-00004")


def test_damage_is_not_skipped_where_a_slice_cuts(folder: Path) -> None:
    skip: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": 1}
    fails(folder, ConfigError, "ends inside shards, and with on_corrupt", split="train[1:]", **skip)
    assert read(folder, "train[:1shard]", **skip) == ids_of("train")[:4]


def test_damage_behind_a_slice_does_not_count(folder: Path) -> None:
    shard = folder / "made-train.tfrecord-00001-of-00004"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert read(folder, "train[:8]", lanes=1) == ids_of("train")[:8]


def test_records_are_excluded_by_their_number_in_the_shard(folder: Path) -> None:
    exclude = [("made-train.tfrecord-00001-of-00004", 2)]
    assert read(folder, "train[5:9]", lanes=1, exclude=exclude) == [5, 7, 8]


def test_which_records_a_step_has(indexed: Path) -> None:
    settings: dict[str, Any] = {"index": True, "shuffle": True, "batch_size": 2, "lanes": 2}
    with opened(indexed, "train[3:13]", **settings) as stream:
        found = [batch["id"].tolist() for batch in stream]
    places = sr.which(str(indexed), range(5), split="train[3:13]", **settings)
    before = {f"made-train.tfrecord-0000{n}-of-00004": sum(LENGTHS["train"][:n]) for n in range(4)}
    numbers = [before[Path(place.shard).name] + place.record for place in places]
    assert numbers == [one for batch in found for one in batch]


def test_only_the_part_of_a_shard_is_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"train": (400,)}, size=100_000)
    with DevStore() as store:
        for path in folder.iterdir():
            store.put(f"b/made/{path.name}", path.read_bytes())
        source, options = "s3://b/made/", store.storage_options
        settings: dict[str, Any] = {"storage_options": options, "memory_budget": "8MiB"}
        assert read(source, "train[:5]", lanes=1, **settings) == list(range(5))
        assert store.statistics.bytes_sent < 20_000_000


FROZEN = Path(__file__).parents[1] / "data" / "tfds"


@pytest.mark.both_kernels
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_folder_that_tfds_has_written(split: str) -> None:
    expected = json.loads((FROZEN / "expected.json").read_text())[split]
    found: dict[str, Any] = {}
    with opened(FROZEN / "frozen/1.0.0", split) as stream:
        for batch in stream:
            for row, number in enumerate(batch["row"].tolist()):
                found[str(number)] = {name: plain(column[row]) for name, column in batch.items()}
    assert found == expected
    assert sr.tfds_info(FROZEN / "frozen/1.0.0").labels == {"label": ["zero", "one"]}


def plain(value: Any) -> Any:
    """Return a row's value as JSON has it."""
    if isinstance(value, sr.Ragged):
        value = value.to_list()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("engine", ["process", "thread", None])
def test_each_engine_reads_a_folder(folder: Path, engine: Any) -> None:
    assert read(folder, "train[2:9]", lanes=1, engine=engine) == ids_of("train")[2:9]


def test_a_feeder_serves_a_folder(folder: Path) -> None:
    settings = settings_of(str(folder), split="train[2:9]", lanes=1)
    with serving(settings) as address, sr.connect(f"{address}/data", batch_size=2) as stream:
        assert ids(stream) == ids_of("train")[2:9]


def test_a_folder_without_a_split_is_told_of_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match='read this TFDS dataset with split="train"'):
        next(sr.open(f"{folder}/", batch_size=2, **FEW))
