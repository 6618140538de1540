from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from streamrec.formats.shards.index import Index
from tests.cli.support import DATA, assert_one_sentence
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.devstore import DevStore


def damaged(tmp_path: Path, place: int) -> Path:
    data = bytearray((DATA / "numbers-00000-of-00003.tfrecord").read_bytes())
    data[place] ^= 1
    path = tmp_path / "shard"
    path.write_bytes(data)
    return path


def test_text(store: DevStore, credentials: list[str]) -> None:
    outcome = cli("verify", "s3://data/numbers-*", *credentials)
    assert outcome == (0, "3 shards, 60 records, 6.6 kB: no fault\n", "")


def test_every_fault_is_named(tmp_path: Path) -> None:
    path = damaged(tmp_path, 30)
    outcome = cli("verify", path, tmp_path / "none", f"{DATA}/numbers-00001-of-00003.tfrecord")
    assert outcome.code == 1
    assert outcome.err == ""
    first, second, lost, advice, last = outcome.out.splitlines()
    assert first.startswith(f"{DATA}") is False
    assert f"{tmp_path / 'none'}" in first
    assert f"{path}, offset 0, record 0: the CRC32C of the record's" in second
    assert lost.endswith("104 of its bytes are not in an intact record")
    assert advice == 'with on_corrupt="skip" a stream goes on without what is damaged'
    assert last == "3 shards, 40 records, 4.4 kB: 2 faults"


def test_what_is_lost_is_told(tmp_path: Path) -> None:
    path = damaged(tmp_path, 0)
    fault, lost, _, total = cli("verify", path).out.splitlines()
    assert "offset 0, record 0: the CRC32C of the record's length" in fault
    assert lost == f"{path}: 104 of its bytes are not in an intact record"
    assert total == "1 shard, 20 records, 2.2 kB: 1 fault"


def test_a_shard_that_was_cut_is_not_told_by_its_last_bytes_alone(tmp_path: Path) -> None:
    path = tmp_path / "train-0.tfrecord"
    shard = (DATA / "numbers-00000-of-00003.tfrecord").read_bytes()
    path.write_bytes(shard)
    assert cli("index", path).code == 0
    path.write_bytes(shard[:1000])
    out = cli("verify", path).out
    assert "it was cut short, and the records after this place are missing" in out
    assert f"{path}: the rest is missing; only an index tells of how many records" in out
    assert "20 records, and it has 1000 and 9 intact ones; fetch the shard again if it" in out
    assert cli("verify", "--json", path).object["damaged"][0]["is_cut"] is True


def test_what_cannot_be_decompressed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "shard.gz"
    path.write_bytes(b"no gzip at all")
    assert f"{path}: 14 bytes cannot be decompressed" in cli("verify", path).out


def test_json(tmp_path: Path) -> None:
    path = damaged(tmp_path, 30)
    outcome = cli("verify", "--json", path)
    found = outcome.object
    assert outcome.code == 1
    assert (found["shards"], found["records"], found["faults"]) == (1, 20, 1)
    (shard,) = found["damaged"]
    assert shard["url"] == str(path)
    assert [fault["type"] for fault in shard["faults"]] == ["CorruptRecord"]


def test_a_shard_that_is_named_twice_is_checked_once() -> None:
    shard = f"{DATA}/numbers-00001-of-00003.tfrecord"
    assert cli("verify", shard, shard).out.startswith("1 shard, 20 records, ")


def test_an_index_of_some_shards_does_not_replace_that_of_all(tmp_path: Path) -> None:
    shards = [tmp_path / shard.name for shard in sorted(DATA.glob("numbers-*"))]
    for shard in shards:
        shutil.copy(DATA / shard.name, shard)
    place = tmp_path / "numbers.streamrec-index"
    cli("index", f"{tmp_path}/numbers-*")
    whole = place.read_bytes()
    outcome = cli("index", *shards[:2])
    assert outcome.code == 2
    assert outcome.err == (
        f"streamrec: error: {place} is the index of {shards[2].name}, too, which was not given; "
        "give all shards, or name another place by --output\n"
    )
    assert place.read_bytes() == whole
    assert cli("index", *shards[:2], "--output", tmp_path / "two.streamrec-index").code == 0
    shards[2].unlink()  # nobody needs its entry then
    assert cli("index", *shards[:2]).code == 0
    place.write_bytes(b"no index")
    assert cli("index", *shards[:2]).code == 0


def test_the_index_beside_the_shards_is_compared(tmp_path: Path) -> None:
    shards = sorted(DATA.glob("numbers-*.tfrecord"))
    for shard in shards:
        shutil.copy(shard, tmp_path)
    source, place = f"{tmp_path}/numbers-*", tmp_path / "numbers.streamrec-index"
    cli("index", source)
    outcome = cli("verify", source)
    assert outcome.code == 0
    assert outcome.out.splitlines()[1:] == [f"{place}: no fault"]
    assert cli("verify", source, "--json").object["index"] == {"url": str(place), "faults": []}

    first, *others = Index.parse(place.read_bytes(), url="").entries
    place.write_bytes(Index((replace(first, records=21), *others)).encode())
    outcome = cli("verify", source)
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        "3 shards, 60 records, 6.6 kB: no fault",
        f"{tmp_path}/{shards[0].name}: the index says that the shard has 21 records, and it has "
        "20; write the index again with `streamrec index`",
        f"{place}: 1 fault",
    ]
    outcome = cli("verify", source, "--json")
    assert outcome.code == 1
    (fault,) = outcome.object["index"]["faults"]
    assert (fault["type"], fault["url"]) == ("StaleIndex", f"{tmp_path}/{shards[0].name}")


def test_refusals(tmp_path: Path) -> None:
    assert_one_sentence(cli("verify", f"{tmp_path}/*"), 1, str(tmp_path))
    assert_one_sentence(cli("verify", "s4://x/y"), 2, "'s4'")


def test_two_datasets_that_are_equal(store: DevStore, credentials: list[str]) -> None:
    outcome = cli(
        "verify", f"{DATA}/numbers-*.tfrecord", "--against", "s3://data/numbers-*", *credentials
    )
    assert outcome == (0, "60 records against 60: equal\n", "")


def test_two_datasets_that_differ() -> None:
    one, two = (f"{DATA}/numbers-0000{number}-of-00003.tfrecord" for number in range(2))
    outcome = cli("verify", one, "--against", one, "--against", two)
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        f"20 records are missing at the end, from record 0 of {two} on",
        "20 records against 40: differences",
    ]
    outcome = cli("verify", one, two, "--against", one, "--any-order", "--json")
    assert outcome.code == 1
    assert (outcome.object["records"], outcome.object["others"]) == (40, 20)
    assert outcome.object["differences"][0] == "20 records are extra"


def test_any_order_of_what() -> None:
    assert_one_sentence(cli("verify", DATA, "--any-order"), 2, "give --against, too")
    assert_one_sentence(cli("verify", DATA, "--exclude", "x.jsonl"), 2, "give --against, too")
