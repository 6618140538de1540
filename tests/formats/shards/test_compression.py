from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import subprocess
import sys
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec.formats.shards.compression as module
from streamrec.errors import (
    CorruptCompression,
    DataError,
    DecompressionBomb,
    TruncatedShard,
    UnsupportedFormat,
)
from streamrec.formats.shards.compression import (
    HEAD,
    OUTPUT,
    RATIO,
    Compressor,
    Decompressor,
    detect,
    hint_at_kind,
    of_name,
)
from streamrec.formats.shards.tfrecord import frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from streamrec.config import Compression


def zipped() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x", "y")
        return file.getvalue()


def saved() -> bytes:
    with io.BytesIO() as file:
        np.save(file, np.arange(3))
        return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b,c\n1,2,3\n", "text: `streamrec write`"),
        (b"a,bc", "text: `streamrec write`"),
        (json.dumps({"ä": "ö" * 9}, ensure_ascii=False).encode(), "text: `streamrec write`"),
        ("\ufeffname;größe".encode(), "text: `streamrec write`"),
        (b"<!DOCTYPE html><html>", "page of an error"),
        (b'<?xml version="1.0"?><Error>', "page of an error"),
        (b"PAR1\x15\x04\x15\x10", "Parquet file: `streamrec write`"),
        (zipped(), "zip archive: unpack it first"),
        (saved(), "NumPy file"),
        (gzip.compress(b"x", mtime=0), "gzip data: set compression"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JPEG picture: `streamrec write`"),
        (b"\x89PNG\r\n\x1a\n", "PNG picture"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd data: set compression"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "compressed twice: decompress it once"),
        (b"SQLite format 3\0\x10\0", "SQLite database: write its rows"),
        (b"\x83\xafp\xd1\r\x88J?" + bytes(16), "an ArrayRecord or Riegeli file: `streamrec write`"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7", "lz4 data: unpack it first"),
        (b"\xff\x06\0\0sNaPpY\x01\x09\0\0", "snappy data: unpack it first"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS: fetch the shard"),
    ],
    ids=lambda part: part[:8] if isinstance(part, bytes) else None,
)
def test_kinds(content: bytes, words: str) -> None:
    for length in (12, len(content)):
        assert words in hint_at_kind(content[:length])


@pytest.mark.parametrize("length", [0, 1, 32, 0x41424344])
def test_a_shard_is_none_of_them(length: int) -> None:
    head = length.to_bytes(8, "little") + bytes(frame(b"x" * 40))[8:12]
    assert hint_at_kind(head) == ""


@pytest.mark.parametrize("head", [b"", b"a,b", b"\x00" * 12, b"\xff\xfe\xfd\xfc" * 3])
def test_what_looks_like_nothing(head: bytes) -> None:
    assert hint_at_kind(head) == ""


pytestmark = pytest.mark.both_kernels

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KINDS: list[Compression] = ["gzip", "zlib", "zstd"]
TEXT = b"".join(frame(f"record {i}".encode() * (i % 5)) for i in range(40))
URL = "s3://b/k.gz"
each_kind = pytest.mark.parametrize("kind", KINDS)


def compress(kind: Compression, data: bytes) -> bytes:
    """Compress as other programs do."""
    if kind == "gzip":
        return gzip.compress(data, mtime=0)
    return zlib.compress(data) if kind == "zlib" else zstd.compress(data)


def decompress(
    kind: Compression, pieces: Iterable[bytes], room: int = 1 << 16, **limits: int
) -> bytes:
    """Feed pieces as they come, into targets of one size."""
    stream, found = Decompressor(kind, url=URL, **limits), bytearray()
    for piece in pieces:
        feed(stream, piece, room, found)
    stream.end()
    feed(stream, b"", room, found)
    stream.finish()
    assert stream.produced == len(found)
    return bytes(found)


def feed(stream: Decompressor, piece: bytes, room: int, found: bytearray) -> None:
    source, target = memoryview(piece), bytearray(room)
    while source or stream.pending:
        taken, given = stream.fill(source, memoryview(target))
        assert 0 <= taken <= len(source)
        source = source[taken:]
        found += target[:given]


def outcome(kind: Compression, pieces: Iterable[bytes], room: int) -> tuple[bytes, str, Any]:
    """Return the decompressed bytes, and the reason why there are no more."""
    stream, found = Decompressor(kind, url=URL), bytearray()
    try:
        for piece in pieces:
            feed(stream, piece, room, found)
        stream.end()
        feed(stream, b"", room, found)
        stream.finish()
    except DataError as fault:
        return bytes(found), fault.message, fault.offset
    return bytes(found), "", None


class TestCutting:
    @each_kind
    def test_every_split(self, kind: Compression) -> None:
        data = compress(kind, TEXT)
        for cut in range(len(data) + 1):
            assert decompress(kind, [data[:cut], data[cut:]]) == TEXT

    @each_kind
    def test_byte_by_byte_in_and_out(self, kind: Compression) -> None:
        data = compress(kind, TEXT)
        assert decompress(kind, [bytes([byte]) for byte in data], room=1) == TEXT

    @each_kind
    @pytest.mark.parametrize("room", [1, 7, len(TEXT) - 1, len(TEXT), len(TEXT) + 1])
    def test_every_size_of_memory(self, kind: Compression, room: int) -> None:
        assert decompress(kind, [compress(kind, TEXT)], room) == TEXT

    @given(
        parts=st.lists(st.binary(max_size=2000), max_size=4),
        kind=st.sampled_from(KINDS),
        cuts=st.lists(st.integers(0, 9000), max_size=5),
        room=st.integers(1, 3000),
    )
    def test_streams_end_to_end(
        self, parts: list[bytes], kind: Compression, cuts: list[int], room: int
    ) -> None:
        data = b"".join(compress(kind, part) for part in parts)
        bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
        assert decompress(kind, pieces, room) == b"".join(parts)

    @each_kind
    def test_no_bytes_are_no_stream(self, kind: Compression) -> None:
        assert decompress(kind, []) == b""

    @each_kind
    def test_more_than_a_library_gives_at_a_time(self, kind: Compression) -> None:
        data = bytes(range(256)) * (OUTPUT // 64)
        assert decompress(kind, [compress(kind, data)], 3 * OUTPUT) == data

    def test_many_empty_members(self) -> None:
        assert decompress("gzip", [gzip.compress(b"") * 5000 + gzip.compress(b"x")]) == b"x"

    def test_skippable_frames(self) -> None:
        skippable = b"\x53\x2a\x4d\x18\x04\0\0\0note"
        data = skippable + zstd.compress(b"one") + skippable + zstd.compress(b"two")
        for room in (1, 2, 3, 100):
            assert decompress("zstd", [data], room) == b"onetwo"

    def test_zeros_behind_a_gzip_member(self) -> None:
        data = gzip.compress(b"one") + bytes(1000) + gzip.compress(b"two") + bytes(5)
        assert decompress("gzip", [data]) == b"onetwo"
        assert decompress("gzip", [bytes([byte]) for byte in data]) == b"onetwo"

    def test_it_says_how_far_it_is(self) -> None:
        stream = Decompressor("gzip", url=URL)
        data = gzip.compress(b"x" * 100)
        stream.end()
        stream.fill(memoryview(data), memoryview(bytearray(200)))
        assert repr(stream) == f"<Decompressor of gzip, {len(data)} bytes in, 100 out>"
        assert (stream.members, stream.pending) == (1, False)


class TestDamage:
    @each_kind
    def test_truncated_anywhere(self, kind: Compression) -> None:
        data = compress(kind, TEXT)
        for size in range(1, len(data)):
            with pytest.raises(TruncatedShard, match=f"inside its {kind} stream") as caught:
                decompress(kind, [data[:size]])
            assert caught.value.fields() == {"url": URL, "offset": size}

    @each_kind
    def test_truncated_in_a_later_member(self, kind: Compression) -> None:
        with pytest.raises(TruncatedShard):
            decompress(kind, [compress(kind, TEXT) + compress(kind, TEXT)[:-1]])

    @each_kind
    def test_a_wrong_checksum(self, kind: Compression) -> None:
        stream = Compressor(kind)
        data = bytearray(stream.compress(TEXT) + stream.finish())
        data[-5 if kind == "gzip" else -1] ^= 1
        with pytest.raises(CorruptCompression, match=f"not an intact {kind}") as caught:
            decompress(kind, [bytes(data)])
        assert caught.value.url == URL

    def test_a_wrong_length_in_a_gzip_trailer(self) -> None:
        with pytest.raises(CorruptCompression, match="incorrect length check"):
            decompress("gzip", [gzip.compress(b"x")[:-1] + b"\1"])

    @each_kind
    @pytest.mark.parametrize("junk", [b"junk", b"\0\0\0\0", TEXT[12:]])
    def test_something_else_behind_it(self, kind: Compression, junk: bytes) -> None:
        if kind == "gzip" and not junk.strip(b"\0"):
            pytest.skip("zeros may follow")
        data = compress(kind, TEXT)
        with pytest.raises(
            CorruptCompression, match="the streams before \\(1\\) are intact"
        ) as caught:
            decompress(kind, [data + junk])
        assert caught.value.offset == len(data)

    @each_kind
    def test_something_else_altogether(self, kind: Compression) -> None:
        with pytest.raises(CorruptCompression, match="set compression to its real one") as caught:
            decompress(kind, [TEXT])
        assert caught.value.offset == 0

    def test_a_window_that_takes_too_much_memory(self) -> None:
        options: dict[int, int] = {zstd.CompressionParameter.window_log: 28}
        stream = zstd.ZstdCompressor(options=options)
        data = stream.compress(bytes(1000)) + stream.flush()
        with pytest.raises(UnsupportedFormat, match="a window of more than 128 MiB"):
            decompress("zstd", [data])

    @each_kind
    def test_what_came_before_a_fault_comes_first(self, kind: Compression) -> None:
        stream = Decompressor(kind, url=URL)
        source, target = memoryview(compress(kind, TEXT) + b"junk"), bytearray(1 << 16)
        stream.end()
        taken, given = stream.fill(source, memoryview(target))
        assert bytes(target[:given]) == TEXT
        assert stream.pending, "there is more to say"
        for _ in range(2):
            with pytest.raises(CorruptCompression):
                stream.fill(source[taken:], memoryview(target))
            with pytest.raises(CorruptCompression):
                stream.finish()

    @settings(deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        place=st.integers(0, 10_000),
        change=st.integers(1, 255),
        room=st.sampled_from([1, 100, 1 << 16]),
    )
    def test_any_changed_byte_is_noticed_or_harmless(
        self, kind: Compression, place: int, change: int, room: int
    ) -> None:
        stream = Compressor(kind)
        data = bytearray(stream.compress(TEXT) + stream.finish())
        data[place % len(data)] ^= change
        try:
            found = decompress(kind, [bytes(data)], room)
        except DataError:
            return
        assert found in (TEXT, b""), "a header's optional fields may change; b'' if skippable"

    @settings(deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        place=st.integers(0, 10_000),
        junk=st.binary(min_size=1, max_size=60),
        cuts=st.lists(st.integers(0, 9000), max_size=5),
        room=st.integers(1, 3000),
    )
    def test_what_comes_before_a_fault_follows_from_the_object_alone(
        self, kind: Compression, place: int, junk: bytes, cuts: list[int], room: int
    ) -> None:
        data = bytearray(2 * compress(kind, bytes(random.Random(1).choices(b"abcd", k=6000))))
        place %= len(data)
        data[place : place + len(junk)] = junk
        bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces = [bytes(data[a:b]) for a, b in itertools.pairwise(bounds)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "INPUT", 200)
            patch.setattr(module, "OUTPUT", 300)
            assert outcome(kind, pieces, room) == outcome(kind, [bytes(data)], 1 << 16)

    @given(kind=st.sampled_from(KINDS), data=st.binary(max_size=300))
    def test_any_bytes_end(self, kind: Compression, data: bytes) -> None:
        magic = {"gzip": b"\x1f\x8b\x08\0", "zlib": b"\x78\x9c", "zstd": b"\x28\xb5\x2f\xfd"}
        with pytest.raises(DataError):
            decompress(kind, [magic[kind] + data + b"?"])


class TestLimits:
    @each_kind
    def test_a_ratio_beyond_the_free_bytes(self, kind: Compression) -> None:
        data = compress(kind, bytes(4 << 20))
        with pytest.raises(DecompressionBomb, match="refused as an attack") as caught:
            decompress(kind, [data], ratio=100, free=1 << 20)
        assert caught.value.url == URL
        assert decompress(kind, [data], ratio=100, free=4 << 20) == bytes(4 << 20)

    @each_kind
    def test_little_more_than_allowed_ever_comes_out(self, kind: Compression) -> None:
        stream = Decompressor(kind, url=URL, ratio=100, free=1 << 20)
        source, target = memoryview(compress(kind, bytes(64 << 20))), bytearray(128 << 20)
        stream.end()
        _, given = stream.fill(source, memoryview(target))
        assert given <= (1 << 20) + 100 * (64 << 10) + OUTPUT
        with pytest.raises(DecompressionBomb):
            stream.fill(source, memoryview(target))

    def test_gzip_never_comes_near_the_ratio(self) -> None:
        data = frame(bytes(8 << 20))
        assert 1000 < len(data) / len(gzip.compress(data)) < RATIO
        assert decompress("gzip", [gzip.compress(data)], free=0) == data


class TestNames:
    @pytest.mark.parametrize(
        ("url", "encoding", "kind"),
        [
            ("a.tfrecord", None, "none"),
            ("a.tfrecord.gz", None, "gzip"),
            ("s3://b/a.GZIP", None, "gzip"),
            ("a.zlib", None, "zlib"),
            ("a.zst", None, "zstd"),
            ("https://h/a.zstd?token=x.y", None, "zstd"),
            ("gz", None, "none"),
            ("a.gz/b", None, "none"),
            ("a", "gzip", "gzip"),
            ("a", "x-gzip", "gzip"),
            ("a", "deflate", "zlib"),
            ("a.zst", "gzip", "gzip"),
            ("a.zst", "br", "zstd"),
        ],
    )
    def test_names(self, url: str, encoding: str | None, kind: str) -> None:
        assert of_name(url, encoding) == kind

    @each_kind
    @given(data=st.binary(max_size=50))
    def test_first_bytes(self, kind: Compression, data: bytes) -> None:
        assert detect(compress(kind, data)[:HEAD]) == kind

    @given(payload=st.binary(max_size=50), named=st.sampled_from(["none", *KINDS]))
    def test_a_frame_is_no_stream_whatever_its_name(self, payload: bytes, named: Any) -> None:
        assert detect(frame(payload)[:HEAD], named) == "none"

    @pytest.mark.parametrize("length", [0x8B1F, 0x178, 0x9C78, 0xFD2FB528, 0x184D2A50])
    def test_lengths_that_look_like_magic(self, length: int) -> None:
        from streamrec.kernel import masked_crc32c

        size = length.to_bytes(8, "little")
        head = size + masked_crc32c(size).to_bytes(4, "little")
        assert detect(head) == "none"
        assert detect(head[:-1] + bytes([head[-1] ^ 1])) != "none"

    def test_skippable_frames_are_zstd(self) -> None:
        assert detect(b"\x5f\x2a\x4d\x18\0\0\0\0") == "zstd"

    @pytest.mark.parametrize("head", [b"", b"\x78", b"<html><body>", bytes(HEAD)])
    def test_the_name_decides_about_anything_else(self, head: bytes) -> None:
        assert detect(head) == "none"
        assert detect(head, "zstd") == "zstd"


class TestCompressor:
    @given(st.lists(st.binary(max_size=300), max_size=5), st.sampled_from(KINDS))
    def test_round_trip(self, parts: list[bytes], kind: Compression) -> None:
        stream = Compressor(kind)
        data = b"".join(stream.compress(part) for part in parts) + stream.finish()
        assert decompress(kind, [data]) == b"".join(parts)

    @each_kind
    def test_flush_gives_all_there_is(self, kind: Compression) -> None:
        stream = Compressor(kind)
        data = stream.compress(TEXT) + stream.flush()
        target = bytearray(len(TEXT))
        reader = Decompressor(kind, url=URL)
        reader.end()
        filled = reader.fill(memoryview(data), memoryview(target))
        assert filled == (len(data), len(TEXT))
        assert target == TEXT
        assert decompress(kind, [data + stream.compress(b"x") + stream.finish()]) == TEXT + b"x"

    @each_kind
    def test_the_same_bytes_again(self, kind: Compression) -> None:
        streams = Compressor(kind), Compressor(kind)
        first, second = (stream.compress(TEXT) + stream.finish() for stream in streams)
        assert first == second

    def test_others_read_it(self) -> None:
        both = {kind: Compressor(kind) for kind in KINDS}
        data = {kind: stream.compress(TEXT) + stream.finish() for kind, stream in both.items()}
        assert gzip.decompress(data["gzip"]) == TEXT
        assert zlib.decompress(data["zlib"]) == TEXT
        assert zstd.decompress(data["zstd"]) == TEXT


def by_dictionary(kind: Compression, data: bytes) -> bytes:
    """Compress with a dictionary, which has to be given to the reader apart."""
    if kind == "zlib":
        stream = zlib.compressobj(zdict=b"record")
        return stream.compress(data) + stream.flush()
    samples = [f"record {i} ".encode() * (i % 9 + 1) for i in range(300)]
    return zstd.compress(data, zstd_dict=zstd.train_dict(samples, 1000))


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
@pytest.mark.parametrize("before", [b"", TEXT], ids=["alone", "second"])
def test_a_dictionary_is_not_damage(kind: Compression, before: bytes) -> None:
    data = (compress(kind, before) if before else b"") + by_dictionary(kind, TEXT)
    decompressor, target = Decompressor(kind, url=URL), memoryview(bytearray(1 << 20))
    with pytest.raises(UnsupportedFormat, match="needs a dictionary, which is not supported"):
        begin = decompressor.fill(memoryview(data), target)[0]
        decompressor.end()
        while decompressor.pending:
            begin += decompressor.fill(memoryview(data)[begin:], target)[0]
        decompressor.finish()


def test_a_python_without_zstd_reads_and_writes_the_rest(tmp_path: Path) -> None:
    # 3.14 and later are built without it where libzstd is missing.
    program = f"""
import sys
sys.modules["backports.zstd"] = sys.modules["compression.zstd"] = None
import streamrec as sr
from streamrec.sources import mds_shards
for kind in ("gzip", "zstd"):
    with sr.TFRecordWriter({str(tmp_path)!r} + "/" + kind, compression=kind) as writer:
        writer.write(b"record")
    print(len(list(sr.open({str(tmp_path)!r} + "/" + kind, batch_size=1, engine="thread"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n"
    assert "has no module for zstd" in done.stderr
