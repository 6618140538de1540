from __future__ import annotations

import errno
import gzip
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets.writer import HELD_BYTES, LARGE, TFRecordWriter
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    WrongFeatureType,
)
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.stores.blocking import write_object
from streamrec.values.columns import BytesColumn

pytestmark = pytest.mark.both_kernels

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def read(data: bytes) -> list[bytes]:
    view = np.frombuffer(data, np.uint8)
    scanner = FrameScanner(url="shard")
    blocks, _ = scanner.scan(view, more=False)
    scanner.finish()
    return [
        view[offset : offset + length].tobytes()
        for block in blocks
        for offset, length in zip(block.offsets.tolist(), block.lengths.tolist(), strict=True)
    ]


@pytest.fixture(params=["path", "str", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Somewhere to write a shard to: a path or a URL."""
    path = tmp_path / "a b.tfrecord"
    places = {
        "path": path,
        "str": str(path),
        "file": path.as_uri(),
        "memory": f"memory://{tmp_path.name}/a b.tfrecord",
    }
    return places[request.param]


def content(place: Any) -> bytes:
    if isinstance(place, str) and place.startswith("memory://"):
        return bytes(fsspec.filesystem("memory").cat_file(place))
    return next(iter(files(place).values()))


def files(place: Any) -> dict[str, bytes]:
    """Return the files in the shard's directory, with the hidden ones."""
    if isinstance(place, str) and place.startswith("memory://"):
        filesystem = fsspec.filesystem("memory")
        directory = place.rpartition("/")[0]
        if not filesystem.exists(directory):
            return {}
        return {name: filesystem.cat_file(name) for name in filesystem.ls(directory, detail=False)}
    local = str(place).removeprefix("file://").replace("%20", " ")
    return {path.name: path.read_bytes() for path in Path(local).parent.iterdir()}


class TestWrite:
    def test_bytes_and_mappings(self, place: Any) -> None:
        with TFRecordWriter(place) as writer:
            writer.write(b"raw")
            writer.write(bytearray(b""))
            writer.write(np.arange(2, dtype=np.int16).data)
            writer.write({"a": [1, 2]})
        assert read(content(place)) == [b"raw", b"", b"\0\0\1\0", encode_example({"a": [1, 2]})]

    def test_many(self, place: Any) -> None:
        with TFRecordWriter(place) as writer:
            records: list[Any] = [b"a", {"b": 1}]
            writer.write_many(iter(records))
            writer.write_many(BytesColumn.of([b"c", b"", b"d"]))
            writer.write_many([])
            writer.write_many(BytesColumn.of([]))
        assert read(content(place)) == [b"a", encode_example({"b": 1}), b"c", b"", b"d"]

    def test_small_and_large_records_keep_their_order(self, place: Any) -> None:
        large = bytes(LARGE)
        with TFRecordWriter(place) as writer:
            writer.write(b"a")
            writer.write(large)
            writer.write(b"b")
            writer.write_many(BytesColumn.of([b"c"]))
        assert read(content(place)) == [b"a", large, b"b", b"c"]

    def test_what_is_held_of_small_records_is_bounded(self, tmp_path: Path) -> None:
        with TFRecordWriter(tmp_path / "x") as writer:
            for _ in range(2 * HELD_BYTES // 1000):
                writer.write(bytes(1000))
            assert writer.nbytes - writer.stored <= HELD_BYTES

    def test_columns(self, place: Any) -> None:
        with TFRecordWriter(place) as writer:
            writer.write_many({"a": np.arange(3), "b": BytesColumn.of([b"x", b"", b"z"])})
            writer.write_many({})
            with pytest.raises(WrongFeatureType, match="feature b: the column has 1 rows"):
                writer.write_many({"a": [1, 2], "b": ["x"]})
            assert writer.records == 3
        rows = [{"a": 0, "b": b"x"}, {"a": 1, "b": b""}, {"a": 2, "b": b"z"}]
        assert read(content(place)) == [encode_example(row) for row in rows]

    def test_an_empty_shard_is_an_empty_object(self, place: Any) -> None:
        TFRecordWriter(place).close()
        assert content(place) == b""

    @given(records=st.lists(st.binary(max_size=30)))
    def test_round_trip(
        self, records: list[bytes], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.mktemp("shard") / "x"
        with TFRecordWriter(path) as writer:
            writer.write_many(records)
        assert path.read_bytes() == b"".join(map(frame, records))

    def test_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        with TFRecordWriter(path) as writer:
            writer.write(b"abc")
            writer.write_many(BytesColumn.of([b"d", b"e"]))
            assert (writer.records, writer.nbytes) == (3, 53)
            assert repr(writer) == f"<TFRecordWriter {path}, open: 3 records, 53 bytes>"
        assert repr(writer) == f"<TFRecordWriter {path}, closed: 3 records, 53 bytes>"
        assert path.stat().st_size == 53

    @pytest.mark.parametrize("record", ["text", 3, None, ["a"]])
    def test_other_records_are_refused(self, tmp_path: Path, record: Any) -> None:
        with TFRecordWriter(tmp_path / "x") as writer:
            with pytest.raises(TypeError, match="bytes or a mapping of features, not"):
                writer.write(record)
            with pytest.raises(WrongFeatureType, match="feature a"):
                writer.write({"a": None})
        assert (tmp_path / "x").read_bytes() == b""


class TestWholeOrNotAtAll:
    def test_nothing_appears_before_close(self, place: Any) -> None:
        writer = TFRecordWriter(place)
        writer.write(bytes(3 << 20))
        writer.flush()
        assert all(name.startswith(".") for name in files(place))
        writer.close()
        writer.close()
        assert len(files(place)) == 1
        assert len(content(place)) == (3 << 20) + 16

    def test_columns_of_a_table(self, place: Any) -> None:
        pandas = pytest.importorskip("pandas")
        table = pandas.DataFrame({"a": [1, 2]})
        with TFRecordWriter(place) as writer:
            for write in (writer.write, writer.write_many):
                with pytest.raises(TypeError, match=r"write_many\(frame\.to_dict\('list'\)\)"):
                    write(table)
            writer.write_many(table.to_dict("list"))
            assert writer.records == 2

    def test_an_exception_discards(self, place: Any) -> None:
        with pytest.raises(TypeError), TFRecordWriter(place) as writer:
            writer.write_many([b"lost", 3])  # type: ignore[list-item]
        assert files(place) == {}

    def test_a_shard_of_before_stays_until_the_new_one_is_complete(self, place: Any) -> None:
        with TFRecordWriter(place) as writer:
            writer.write(b"old")
        writer = TFRecordWriter(place)
        writer.write(b"new")
        assert read(content(place) if "memory" in str(place) else visible(place)) == [b"old"]
        writer.discard()
        writer.discard()
        assert read(content(place)) == [b"old"]
        with TFRecordWriter(place) as writer:
            writer.write(b"new")
        assert read(content(place)) == [b"new"]

    def test_a_closed_writer_takes_no_more(self, place: Any) -> None:
        writer = TFRecordWriter(place)
        writer.close()
        with pytest.raises(ValueError, match="takes no more records"):
            writer.write(b"late")
        with pytest.raises(ValueError, match="takes no more records"):
            writer.flush()
        assert content(place) == b""

    def test_forgetting_to_close_warns_and_discards(self, place: Any) -> None:
        writer = TFRecordWriter(place)
        writer.write(b"lost")
        with pytest.warns(ResourceWarning, match="never closed"):
            writer.__del__()
        assert files(place) == {}

    def test_a_failing_disk_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        writer = TFRecordWriter(tmp_path / "x")
        writer.write(b"lost")
        with pytest.raises(
            StoreError, match="x: the object cannot be written: No space left on device"
        ):
            writer.close()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(  # an SDK's errors are of any class
        ("error", "kind"), [(OSError, StoreUnavailable), (KeyError, StoreMisbehaved)]
    )
    def test_a_failing_upload_leaves_nothing(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: type[Exception],
        kind: type[StoreError],
    ) -> None:
        filesystem = fsspec.filesystem("memory")

        def fail(*_: Any, **__: Any) -> None:
            raise error("the store is gone")

        monkeypatch.setattr(type(filesystem), "put_file", fail)
        url = f"memory://{tmp_path.name}/failed"
        with pytest.raises(kind, match=error.__name__) as caught:
            TFRecordWriter(url).close()
        assert caught.value.url == url
        assert not filesystem.exists(url)

    def test_permissions_are_those_of_any_file(self, tmp_path: Path) -> None:
        TFRecordWriter(tmp_path / "x").close()
        (tmp_path / "y").touch()
        assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def visible(place: Any) -> bytes:
    (data,) = [data for name, data in files(place).items() if not name.startswith(".")]
    return data


class TestRefusals:
    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ObjectNotFound, match="create it first") as caught:
            TFRecordWriter(tmp_path / "no" / "x")
        assert caught.value.url == str(tmp_path / "no" / "x")

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="is a directory"):
            TFRecordWriter(tmp_path)

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)
        with pytest.raises(AccessDenied, match="may not be written"):
            TFRecordWriter(tmp_path / "x")

    def test_an_unknown_compression(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no compression 'bzip2'; choose 'auto', 'none'"):
            TFRecordWriter(tmp_path / "x", "bzip2")
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_scheme(self) -> None:
        with pytest.raises(ConfigError, match=r"foo://x: .*foo"):
            TFRecordWriter("foo://x")

    def test_storage_options_reach_the_filesystem(self, tmp_path: Path) -> None:
        url = f"dir://{tmp_path.name}/shard"
        options = {"path": str(tmp_path), "target_protocol": "file"}
        (tmp_path / tmp_path.name).mkdir()
        with TFRecordWriter(url, storage_options=options) as writer:
            writer.write(b"x")
        assert read((tmp_path / tmp_path.name / "shard").read_bytes()) == [b"x"]


DECOMPRESS: dict[str, Any] = {
    "gzip": gzip.decompress,
    "zlib": zlib.decompress,
    "zstd": zstd.decompress,
}
PLAIN = [b"one", b"", b"three" * 1000]


class TestCompression:
    @pytest.mark.parametrize(
        ("compression", "kind"),
        [("gzip", "gzip"), ("GZIP", "gzip"), ("zlib", "zlib"), ("ZLIB", "zlib"), ("zstd", "zstd")],
    )
    def test_written(self, tmp_path: Path, compression: str, kind: str) -> None:
        with TFRecordWriter(tmp_path / "x", compression) as writer:
            writer.write(PLAIN[0])
            writer.write_many(PLAIN[1:])
        assert read(DECOMPRESS[kind]((tmp_path / "x").read_bytes())) == PLAIN
        assert (writer.records, writer.nbytes) == (3, sum(len(frame(p)) for p in PLAIN))

    @pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zst", "zstd"), (".zl", None)])
    def test_by_the_suffix_where_that_is_asked_for(
        self, tmp_path: Path, suffix: str, kind: str | None
    ) -> None:
        path = tmp_path / f"x{suffix}"
        with TFRecordWriter(path, "auto") as writer:
            writer.write(b"x")
        data = path.read_bytes()
        assert read(DECOMPRESS[kind](data) if kind else data) == [b"x"]

    @pytest.mark.parametrize("none", [None, "", "none"])
    def test_none(self, tmp_path: Path, none: str | None) -> None:
        with TFRecordWriter(tmp_path / "x.gz", none) as writer:
            writer.write(b"x")
        assert read((tmp_path / "x.gz").read_bytes()) == [b"x"]

    @pytest.mark.parametrize("kind", sorted(DECOMPRESS))
    def test_no_records(self, tmp_path: Path, kind: str) -> None:
        TFRecordWriter(tmp_path / "x", kind).close()
        assert DECOMPRESS[kind]((tmp_path / "x").read_bytes()) == b""

    def test_flush_hands_on_what_was_written(self, tmp_path: Path) -> None:
        with TFRecordWriter(tmp_path / "x", "gzip") as writer:
            writer.write(b"x" * 1000)
            writer.flush()
            (part,) = tmp_path.iterdir()
            stream = zlib.decompressobj(31)
            assert stream.decompress(part.read_bytes()) == frame(b"x" * 1000)

    def test_equal_records_give_equal_bytes(self, tmp_path: Path) -> None:
        for name in "ab":
            with TFRecordWriter(tmp_path / name, "gzip") as writer:
                writer.write_many(PLAIN)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    @pytest.mark.parametrize("kind", sorted(DECOMPRESS))
    def test_a_failure_discards_it(self, tmp_path: Path, kind: str) -> None:
        with pytest.raises(RuntimeError), TFRecordWriter(tmp_path / "x", kind) as writer:
            writer.write(b"x")
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []


class TestOneObject:
    def test_it_appears_whole(self, place: Any) -> None:
        write_object(str(place), b"one")
        write_object(str(place), b"two")
        assert content(place) == b"two"

    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ObjectNotFound, match="create it first"):
            write_object(str(tmp_path / "no" / "where"), b"x")
