from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

import streamrec
from streamrec import kernel
from streamrec.formats.examples.descriptions import from_description
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import DATA, assert_one_sentence, in_process
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore

pytestmark = pytest.mark.both_kernels

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
