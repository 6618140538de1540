from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

import streamrec
from streamrec import kernel
from streamrec.formats.examples.descriptions import as_python, from_description
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import DATA, assert_one_sentence, in_process
from tests.cli.support import streamrec as cli
from tests.pipeline.made_folders import make_folder
from tests.pipeline.small_datasets import write, write_index

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore

NUMBERS = """\
shards       3: {0}/numbers-00000-of-00003.tfrecord ... {0}/numbers-00002-of-00003.tfrecord
bytes        6,564 (6.6 kB)
records      60
compression  none
kernel       {1}

# from 60 records
features = {{
    'divisors': sr.VarLenFeature('int64'),
    'id': sr.FixedLenFeature((), 'int64'),
    'name': sr.FixedLenFeature((), 'bytes'),
    'square': sr.FixedLenFeature((2,), 'float32'),
}}
"""


@pytest.mark.both_kernels
def test_text() -> None:
    outcome = cli("info", f"{DATA}/numbers-*")
    assert outcome == (0, NUMBERS.format(DATA, kernel.implementation), "")


def test_the_features_can_be_pasted() -> None:
    names: dict[str, object] = {"sr": streamrec}
    code = cli("info", DATA / "kinds.tfrecord").out.partition("\n\n")[2]
    exec(code, names)
    features = names["features"]
    assert isinstance(features, dict)
    with streamrec.open(str(DATA / "kinds.tfrecord"), features, batch_size=4) as stream:
        assert sum(len(batch) for batch in stream) == 15


def test_json(store: DevStore) -> None:
    found = cli("info", "--json", store.url("data/pictures.tfrecord")).object
    assert {name: found[name] for name in ("shards", "bytes", "records", "estimated")} == {
        "shards": 1,
        "bytes": 266907,
        "records": 35,
        "estimated": False,
    }
    assert found["first_shard"] == found["last_shard"] == store.url("data/pictures.tfrecord")
    assert sorted(from_description(found["features"])) == ["id", "image", "label", "name"]
    assert found["python"].startswith("features = {")


def test_json_alone_is_on_standard_output() -> None:
    outcome = in_process("info", "--json", DATA / "sizes.tfrecord")
    assert outcome.object["features"] is None
    assert "tf.train.Example" in outcome.object["note"]
    assert outcome.err == ""


def test_two_shards() -> None:
    names = [str(DATA / f"numbers-0000{i}-of-00003.tfrecord") for i in (0, 1)]
    assert cli("info", *names).out.splitlines()[0] == f"shards       2: {', '.join(names)}"


def test_a_note() -> None:
    assert cli("info", DATA / "empty.tfrecord").out.endswith("\nnote: there are no records\n")


def test_compressed(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(gzip.compress(frame(b"x")))
    assert "records      1\ncompression  gzip\n" in cli("info", path).out


def test_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.datasets.survey.SMALL", 1000)
    assert "about 60, estimated from a sample" in cli("info", f"{DATA}/numbers-*").out
    assert "records      60\n" in cli("info", f"{DATA}/numbers-*", "--scan").out


def test_refusals(store: DevStore, tmp_path: Path) -> None:
    assert_one_sentence(cli("info", tmp_path / "none"), 1, str(tmp_path / "none"))
    assert_one_sentence(cli("info", store.url("data/none")), 1, store.url("data/none"))
    assert_one_sentence(cli("info", "s4://x/y"), 2, "'s4'")
    path = tmp_path / "text"
    path.write_text("this is no shard at all")
    assert_one_sentence(cli("info", path), 1, str(path), "offset 0", "not a TFRecord file")


# -- how well a stream mixes -----------------------------------------------------------------------


@pytest.fixture
def indexed(tmp_path: Path) -> str:
    """Write three shards of 20 records, and their index."""
    source = write(tmp_path, ((30,) * 20,) * 3)
    write_index(source, 200)
    return source


MIXING = """\
records      60 of 3 shards
batches      15 of 4 records
chi-square   4.214 (a perfect shuffle has 1, and batches of one shard 4.214)
run length   20 (a perfect shuffle has 1.463)
"""
INDEXED = ("--shuffle", "--set", "index=true")
IN_ORDER = (*INDEXED, "--set", "batch_size=4", "--set", "lanes=1")


def test_how_well_a_stream_mixes(indexed: str) -> None:
    assert cli("info", *IN_ORDER, indexed) == (0, MIXING, "")


def test_the_ranks_of_a_step_have_one_batch(indexed: str) -> None:
    values = *INDEXED, "--json", "--set", "shuffle=true", "--set", "lanes=4"
    alone = cli("info", *values, "--set", "batch_size=8", indexed).object
    assert alone == cli("info", *values, "--set", "batch_size=2", "--world-size", 4, indexed).object
    assert (alone["batches"], alone["batch_size"], alone["records"]) == (7, 8, 60)


def test_an_order_of_ids_and_one_of_numbers(indexed: str, tmp_path: Path) -> None:
    order, numbers = tmp_path / "order", tmp_path / "numbers"
    order.write_text("".join(f"part-{i // 20}:{i % 20}\n" for i in range(60)))
    numbers.write_text("".join(f"{i}\n" for i in range(60)))
    alone = "info", "--shuffle", "--set", "batch_size=4", "--order"
    assert cli(*alone, order) == (0, MIXING, "")
    assert cli(*alone, numbers, indexed) == (0, MIXING, "")
    assert_one_sentence(cli(*alone, numbers), 2, "URL of shards that have an index")


def test_the_order_of_a_configuration(indexed: str, tmp_path: Path) -> None:
    config = tmp_path / "feeder.toml"
    table = f'source = "{indexed}"\nbatch_size = 4\nlanes = 1\nindex = true\n'
    config.write_text(f"[datasets.d]\n{table}")
    assert cli("info", "--shuffle", "--config", config) == (0, MIXING, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "there are no shards"),
        (("--order", __file__, "x"), "--order has no effect without --shuffle"),
        (("--set", "batch_size=4", "x"), "--set has no effect without --shuffle"),
        (("--shuffle",), "there is no source"),
        (("--shuffle", "--scan", "x"), "--scan has no effect with --shuffle"),
        (("--shuffle", "--set", "batch_size=4", "x"), "--set index=true"),
        (("--shuffle", "--order", __file__), "--set batch_size=N"),
        (("--shuffle", "--order", __file__, "--set", "batch_size=0"), "from 1 up"),
        (("--shuffle", "--order", __file__, "--set", "batch_size=4"), "line 1 of the order"),
        (("--shuffle", "--order", __file__, "--set", "seed=4"), "--set seed has no effect"),
        (("--shuffle", "--order", __file__, "--dataset", "d"), "--dataset has no effect"),
    ],
)
def test_refusals_of_shuffle(arguments: tuple[object, ...], words: str) -> None:
    assert_one_sentence(cli("info", *arguments), 2, words)


def test_shards_without_an_index() -> None:
    assert_one_sentence(cli("info", *IN_ORDER, f"{DATA}/numbers-*"), 1, "streamrec index")


FOLDER = """\
dataset      made 1.0.0
split        train: 17 records
split        test: 3 records
labels       label: even, odd

features = {
    'id': sr.FixedLenFeature((), 'int32'),
    'label': sr.FixedLenFeature((), 'int64'),
}
"""


def test_a_folder_of_tfds(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert in_process("info", folder).out == FOLDER
    facts = json.loads(in_process("info", f"{folder}/", "--json").out)
    assert facts["splits"] == {"train": 17, "test": 3}
    assert facts["labels"] == {"label": ["even", "odd"]}
    assert list(from_description(facts["features"])) == ["id", "label"]


def test_a_folder_steers_no_terminal(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "label.labels.txt").write_text("e\x1b[31mven\n")
    place = folder / "dataset_info.json"
    info = {**json.loads(place.read_bytes()), "version": "1\n\x07", "configName": "a\x9bb"}
    info["splits"][1] |= {"name": "t\x1b]0;x\x07", "filepathTemplate": "x"}
    place.write_text(json.dumps(info))
    place = folder / "features.json"
    features = place.read_text().replace("scalar.Scalar", "scalar.S\\u001b[2J")
    place.write_text(features)
    out = in_process("info", folder).out
    assert out.replace("\n", "").isprintable()
    assert len(out.splitlines()) == 9


def test_specs_of_a_folder_can_be_pasted() -> None:
    rows = streamrec.RaggedFeature.RowLengths("x/ragged_row_lengths_0")
    spec = streamrec.RaggedFeature("int64", "x/ragged_flat_values", [rows])
    scope: dict[str, Any] = {"sr": streamrec}
    exec(as_python({"x": spec, "y": streamrec.Image(sequence=True)}), scope)
    assert scope["features"] == {"x": spec, "y": streamrec.Image(sequence=True)}


def test_a_folder_takes_no_options_for_shards(tmp_path: Path) -> None:
    done = in_process("info", str(make_folder(tmp_path)), "--scan")
    assert_one_sentence(done, 2, "--scan has no effect on a folder of TFDS")
