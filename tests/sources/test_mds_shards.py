from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, DataError, RecordTooLarge
from streamrec.sources.mds_shards import INDEX_COPIES, read_index, samples_of
from streamrec.sources.source import DEFAULT_MEMORY, Memory
from streamrec.stores.stored_files import find_files
from tests.sources.mds_writer import write_mds

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [[b"%d" % n, bytes(n)] for n in range(9)]
COLUMNS = {"a": "str", "b": "bytes"}


def read(root: Path, *part: int, memory: Memory = DEFAULT_MEMORY) -> list[list[bytes]]:
    files = {file.name: file for file in find_files(str(root), {})}
    shards = read_index(files, str(root), memory)
    found = []
    for shard in shards:
        first, stop = part or (0, shard.samples)
        found.append(samples_of(files[shard.stored.basename], shard, first, stop, memory))
    return found


def encoded(samples: list[list[bytes]]) -> list[bytes]:
    return [
        b"".join([*(len(value).to_bytes(4, "little") for value in sample), *sample])
        for sample in samples
    ]


@given(
    shards=st.lists(
        st.lists(st.tuples(st.binary(max_size=9), st.binary()), min_size=1), max_size=3
    ),
    compression=st.sampled_from([None, "gz:3", "bz2", "zstd"]),
)
def test_what_is_written_is_read(
    shards: Any, compression: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = write_mds(tmp_path_factory.mktemp("d") / "x", COLUMNS, shards, compression)
    assert read(root) == [encoded(samples) for samples in shards]


def test_a_part(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES])
    for first in range(9):
        for stop in range(first + 1, 10):
            assert read(root, first, stop) == [encoded(SAMPLES[first:stop])]


@pytest.mark.parametrize("compression", [None, "gz", "bz2", "zstd:5"])
def test_damaged_shards(compression: str | None, tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], compression)
    (path,) = root.glob("shard*")
    data = path.read_bytes()
    whole, refused = read(root), 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        try:
            found = read(root)
        except DataError as error:
            assert "the shard is damaged: " in str(error)
            refused += 1
        else:  # a gzip file has a time, which is no part of the data
            assert compression in (None, "zstd:5") or found == whole
    assert refused > 20


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES, SAMPLES])
    good = json.loads((root / "index.json").read_text())

    def changed(*path: Any, value: Any) -> None:
        index = json.loads(json.dumps(good))
        place = index
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        (root / "index.json").write_text(json.dumps(index))

    raw = ("shards", 1, "raw_data")
    for path, value, words in [
        (("version",), 1, "not an index of MDS, version 2, at 'version'"),
        (("shards", 1, "format"), "json", r"at 'shards\.1\.format'"),
        ((*raw, "basename"), "../../etc/passwd", r"at 'shards\.1\.raw_data\.basename'"),
        ((*raw, "bytes"), 1 << 40, r"at 'shards\.1\.raw_data\.bytes'"),
        ((*raw, "bytes"), 7, r"shard\.00001\.mds has \d+ bytes, but the index says 7"),
        ((*raw, "basename"), "no", "no is not there, but the index says"),
        (("shards", 1, "column_sizes"), [8], "columns without a name or a type"),
        (("shards", 1, "samples"), 3, "it has 9 samples, but the index says 3"),
        (("shards", 1, "column_encodings"), ["str", "str"], "are not those of others"),
        (
            ("shards", 1, "zip_data"),
            good["shards"][1]["raw_data"],
            "is compressed by 'none', and streamrec reads bz2",
        ),
    ]:
        changed(*path, value=value)
        with pytest.raises((DataError, ConfigError), match=words):
            read(root)
    (root / "index.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no index\.json; give the directory"):
        read(root)


@pytest.mark.parametrize(("compression", "hashes"), [(None, []), ("zstd", []), (None, ["md5"])])
def test_samples_have_a_limit(compression: str | None, hashes: list[str], tmp_path: Path) -> None:
    samples = [[b"%d" % n, bytes(20_000)] for n in range(4)]
    root = write_mds(tmp_path / "x", COLUMNS, [samples], compression, hashes)
    assert read(root, memory=Memory(4 * 81_000)) == [encoded(samples)]
    with pytest.raises(RecordTooLarge, match="what is read together of the shard takes"):
        read(root, memory=Memory(4 * 79_000))


def test_an_index_has_a_limit(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES])
    size = (root / "index.json").stat().st_size
    with pytest.raises(RecordTooLarge, match="the index takes"):
        read(root, memory=Memory(INDEX_COPIES * size - 1))


@pytest.mark.parametrize("compression", [None, "gz"])
def test_hashes_are_checked(compression: str | None, tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], compression, ["sha1", "md5"])
    assert read(root) == [encoded(SAMPLES)]
    index = root / "index.json"
    document = json.loads(index.read_text())
    stored = document["shards"][0]["zip_data" if compression else "raw_data"]
    stored["hashes"]["md5"] = stored["hashes"]["md5"][::-1]
    index.write_text(json.dumps(document))
    with pytest.raises(DataError, match="the shard is damaged: its md5 is not the one in"):
        read(root)


def test_a_changed_byte_in_a_value(tmp_path: Path) -> None:
    """Only the hash can tell it: every length is right."""
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], None, ["sha256"])
    path = root / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"8" + bytes(8), b"7" + bytes(8)))
    with pytest.raises(DataError, match="its sha256 is not the one in the index"):
        read(root)


def test_hashes_of_an_unknown_kind(tmp_path: Path) -> None:
    root = write_mds(tmp_path / "x", COLUMNS, [SAMPLES], None, ["sha1"])
    index = root / "index.json"
    index.write_text(index.read_text().replace('"sha1": ', '"another": '))
    with pytest.raises(ConfigError, match=r"are of the kind another; .* pip install xxhash"):
        read(root)
