from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec import kernel
from streamrec.errors import DataError, MalformedImage, UnsupportedFormat
from streamrec.formats.images import png
from streamrec.formats.images.image import encode_png, read_picture
from streamrec.formats.images.picture import OutputForm
from streamrec.formats.images.png import deflate
from tests.formats.pictures.encoded import (
    PNG_KINDS,
    header,
    noise,
    of_chunks,
    random_png,
    saved,
    smooth,
    transparency,
)
from tests.formats.pictures.filtering import filtered

pytestmark = pytest.mark.both_kernels

ROWS = st.integers(1, 8).flatmap(
    lambda pixel: st.tuples(
        st.just(pixel),
        npst.arrays(
            np.uint8,
            st.tuples(st.integers(1, 9), st.integers(1, 6).map(lambda width: width * pixel)),
        ),
    )
)


def cost(differences: list[int]) -> int:
    return sum(min(each, 256 - each) for each in differences)


@given(ROWS, st.sampled_from([1, 20, 1 << 18]))
def test_each_row_has_the_least_sum(case: tuple[int, Any], band: int) -> None:
    pixel, rows = case
    whole = png._BAND
    png._BAND = band
    try:
        found = zlib.decompress(deflate(rows, pixel, -1))
    finally:
        png._BAND = whole
    height, width = len(rows), rows.shape[1] // pixel
    usable = [
        kind for kind in range(5) if (height > 1 or kind < 2) and (width > 1 or kind in (0, 2))
    ]
    above = [0] * rows.shape[1]
    for number, row in enumerate(rows.tolist()):
        begin = number * (1 + len(row))
        each = {kind: filtered(kind, row, above, pixel) for kind in usable}
        best = min(usable, key=lambda kind: cost(each[kind]))
        assert list(found[begin : begin + 1 + len(row)]) == [best, *each[best]]
        above = row


@pytest.mark.parametrize("level", range(-1, 10))
def test_the_data_of_each_level_is_read_back(level: int) -> None:
    """Also where a header's check had to change, which stands beside two flags."""
    for size in (100, 1 << 14, 1 << 15):
        rows = np.zeros((1, size), np.uint8)
        assert zlib.decompress(deflate(rows, 1, level))[1:] == rows.tobytes()


def test_the_header_says_the_smallest_window() -> None:
    for size, window in ((1, 0), (255, 0), (256, 1), (5000, 5), (1 << 15, 7)):
        octets = deflate(np.zeros((1, size), np.uint8), 1, -1)
        assert octets[0] == window << 4 | zlib.DEFLATED
        assert (octets[0] << 8 | octets[1]) % 31 == 0


@pytest.mark.parametrize(
    ("shape", "bands"),
    [((9, 64), [4, 4, 1]), ((8, 64), [4, 4]), ((3, 300), [1, 1, 1]), ((2, 128), [2])],
)
def test_a_band_holds_no_more_bytes_than_its_limit(
    shape: tuple[int, int], bands: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one row alone has more."""
    monkeypatch.setattr(png, "_BAND", 256)
    found = png._filter(np.zeros(shape, np.uint8), 1)
    assert [len(each) // (1 + shape[1]) for each in found] == bands


END = (b"IEND", b"")


def read(contents: bytes, channels: int = 0, bits: int = 8) -> Any:
    picture = read_picture(contents, OutputForm(channels, bits))
    decoded = picture.decode()
    assert decoded.shape == picture.shape
    assert decoded.dtype == (np.uint8 if bits == 8 else np.uint16)
    return decoded


def small(kind: int, depth: int, rows: list[bytes], *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG two pixels wide, without filters."""
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return of_chunks((b"IHDR", header(2, len(rows), depth, kind)), *chunks, (b"IDAT", data), END)


@pytest.mark.parametrize(("kind", "depth"), PNG_KINDS)
@pytest.mark.parametrize("interlaced", [False, True])
def test_every_kind_has_a_shape(kind: int, depth: int, interlaced: bool) -> None:
    contents = random_png(kind, depth, interlaced=interlaced)
    natural = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}[kind]
    assert read(contents).shape == (9, 11, natural)
    for channels in (1, 3, 4):
        assert read(contents, channels, 16).shape == (9, 11, channels)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_pixels_come_back(channels: int, dtype: Any) -> None:
    array = noise((13, 7, channels), most=np.iinfo(dtype).max).astype(dtype)
    bits = array.dtype.itemsize * 8
    np.testing.assert_array_equal(read(encode_png(array), 0, bits), array)


def test_sixteen_bits_are_cut_and_eight_are_filled_up() -> None:
    contents = small(0, 16, [b"\x12\xff\xff\x00"])
    assert read(contents).ravel().tolist() == [0x12, 0xFF]
    assert read(contents, 0, 16).ravel().tolist() == [0x12FF, 0xFF00]
    assert read(small(0, 8, [b"\x12\xff"]), 0, 16).ravel().tolist() == [0x1212, 0xFFFF]


def test_few_bits_are_spread() -> None:
    assert read(small(0, 1, [b"\x40"])).ravel().tolist() == [0, 255]
    assert read(small(0, 2, [b"\x60"])).ravel().tolist() == [85, 170]
    assert read(small(0, 4, [b"\x1f"])).ravel().tolist() == [17, 255]


class TestPalettes:
    PALETTE = (b"PLTE", bytes([10, 20, 30, 40, 50, 60]))

    def test_colours(self) -> None:
        contents = small(3, 1, [b"\x40"], self.PALETTE)
        assert read(contents).tolist() == [[[10, 20, 30], [40, 50, 60]]]

    def test_transparency_makes_four_channels(self) -> None:
        contents = small(3, 8, [b"\1\0"], self.PALETTE, (b"tRNS", b"\7"))
        assert read(contents).tolist() == [[[40, 50, 60, 255], [10, 20, 30, 7]]]
        assert read(contents, 3).tolist() == [[[40, 50, 60], [10, 20, 30]]]

    def test_a_colour_that_is_not_there_is_black(self) -> None:
        assert read(small(3, 8, [b"\1\x09"], self.PALETTE))[0, 1].tolist() == [0, 0, 0]

    def test_of_more_colours_than_there_can_be(self) -> None:
        with pytest.raises(MalformedImage, match="palette"):
            read(small(3, 8, [b"\0\0"], (b"PLTE", bytes(771))))

    def test_none(self) -> None:
        with pytest.raises(MalformedImage, match="cannot be decoded"):
            read(small(3, 8, [b"\0\0"]))

    def test_of_other_kinds_it_says_nothing(self) -> None:
        assert read(small(0, 8, [b"ab"], self.PALETTE)).shape == (1, 2, 1)


class TestTransparency:
    def test_of_gray(self) -> None:
        contents = small(0, 4, [b"\x1f"], (b"tRNS", b"\0\1"))
        assert read(contents, 4).tolist() == [[[17, 17, 17, 0], [255, 255, 255, 255]]]
        assert read(contents).tolist() == [[[17], [255]]]

    def test_of_sixteen_bits_both_bytes_count(self) -> None:
        contents = small(0, 16, [b"\1\2\1\3"], (b"tRNS", b"\1\2"))
        assert read(contents, 4)[0, :, 3].tolist() == [0, 255]

    def test_a_corrupt_one(self) -> None:
        with pytest.raises(MalformedImage, match="cannot be decoded"):
            read(small(0, 8, [b"ab"], (b"tRNS", b"\0")), 4)

    @pytest.mark.parametrize(
        ("kind", "depth"), [each for each in PNG_KINDS if each[0] in (0, 2, 3)]
    )
    def test_every_kind(self, kind: int, depth: int) -> None:
        contents = random_png(kind, depth, extra=[transparency(kind, depth)])
        assert read(contents, 4).shape == (9, 11, 4)


class TestGray:
    ROW = bytes([200, 100, 0, 7, 7, 7])

    def test_weights(self) -> None:
        gray = read(small(2, 8, [self.ROW]), 1).ravel().tolist()
        assert gray == [int(0.299 * 200 + 0.587 * 100), 7]

    @pytest.mark.parametrize(
        "chunk", [(b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 45455))], ids=["sRGB", "gAMA"]
    )
    def test_in_linear_light_where_that_is_known(self, chunk: tuple[bytes, bytes]) -> None:
        gray = read(small(2, 8, [self.ROW], chunk), 1).ravel().tolist()
        light = 0.299 * (200 / 255) ** 2.2 + 0.587 * (100 / 255) ** 2.2
        assert gray == [pytest.approx(255 * light ** (1 / 2.2), abs=2), 7]

    @pytest.mark.parametrize(
        ("gamma", "depth", "colours", "grays"),
        [
            (45455, 8, (68, 32, 130), [66, 82]),
            (33333, 8, (117, 117, 122), [118, 119]),
            (45455, 16, (2937, 14319, 30613), [15575, 20412]),
            (None, 16, (63521, 10646, 49622), [30900, 28329]),
        ],
    )
    def test_sums_are_rounded_where_tensorflow_rounds_them(
        self, gamma: int | None, depth: int, colours: tuple[int, ...], grays: list[int]
    ) -> None:
        """The values are TensorFlow's; without a gamma, those of 8 bits are cut."""
        pixels = np.array([colours, colours[::-1]], ">u1" if depth == 8 else ">u2")
        chunks = () if gamma is None else ((b"gAMA", struct.pack(">I", gamma)),)
        contents = small(2, depth, [pixels.tobytes()], *chunks)
        assert read(contents, 1, depth).ravel().tolist() == grays

    def test_a_gamma_close_to_one_is_one(self) -> None:
        contents = small(2, 8, [self.ROW], (b"gAMA", struct.pack(">I", 99_000)))
        assert read(contents, 1).tolist() == read(small(2, 8, [self.ROW]), 1).tolist()


class TestChunks:
    GOOD = saved(noise((4, 4, 3)).astype(np.uint8), "PNG")

    @pytest.mark.parametrize("end", range(8, len(GOOD) - 4, 5))
    def test_truncated_anywhere(self, end: int) -> None:
        with pytest.raises(MalformedImage, match="truncated"):
            read(self.GOOD[:end])

    @pytest.mark.parametrize("at", range(8, len(GOOD) - 12, 3))
    def test_any_flipped_byte_before_the_empty_last_chunk_is_found(self, at: int) -> None:
        flipped = bytearray(self.GOOD)
        flipped[at] ^= 0x20
        with pytest.raises(MalformedImage):
            read(bytes(flipped))

    def test_what_follows_the_end_is_not_looked_at(self) -> None:
        np.testing.assert_array_equal(read(self.GOOD + b"more"), read(self.GOOD))

    def test_pixels_in_several_pieces(self) -> None:
        data = zlib.compress(b"\0abc\0def")
        pieces = [(b"IDAT", data[k : k + 3]) for k in range(0, len(data), 3)]
        head = (b"IHDR", header(1, 2))
        assert read(of_chunks(head, *pieces, END)).ravel().tolist() == list(b"abcdef")
        late = of_chunks(head, *pieces[:1], (b"tEXt", b""), *pieces[1:], END)
        with pytest.raises(MalformedImage):
            read(late)

    @pytest.mark.parametrize(
        "chunks",
        [
            [END],
            [(b"IHDR", header(1, 1)), END],
            [(b"IHDR", header(1, 1)), (b"IHDR", header(1, 1)), END],
            [(b"IDAT", b""), (b"IHDR", header(1, 1)), END],
            [(b"IHDR", header(1, 1)[:-1]), (b"IDAT", b""), END],
            [(b"IHDR", header(0, 1)), (b"IDAT", b"x"), END],
            [(b"IHDR", header(1, 1 << 31)), (b"IDAT", b"x"), END],
            [(b"IHDR", header(1, 1, 4, 2)), (b"IDAT", b"x"), END],
            [(b"IHDR", header(1, 1, 8, 5)), (b"IDAT", b"x"), END],
            [(b"IHDR", header(1, 1, 8, 2, 2)), (b"IDAT", b"x"), END],
        ],
    )
    def test_what_is_refused(self, chunks: list[tuple[bytes, bytes]]) -> None:
        with pytest.raises(MalformedImage):
            read(of_chunks(*chunks))

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize(
        "extra",
        [
            (b"iCCP", b"name\0\1" + zlib.compress(b"a profile")),
            (b"iCCP", b"name\0\0" + zlib.compress(bytes(2 << 20))),
            (b"iCCP", b""),
            (b"zTXt", b"name\0\0" + zlib.compress(bytes(2 << 20))),
            (b"zTXt", b"name\0\7text"),
            (b"acTL", struct.pack(">II", 0, 0)),
            (b"fcTL", struct.pack(">IIIIIHHBB", 0, 9, 9, 0, 0, 1, 1, 2, 1)),
            (b"fdAT", b"\0\0\0\2data"),
            (b"fdAT", b"\0"),
            (b"gAMA", b"\0"),
            (b"sRGB", b""),
        ],
        ids=lambda extra: extra[0].decode(),
    )
    def test_what_says_nothing_about_the_pixels_is_passed_over(
        self, extra: tuple[bytes, bytes], late: bool
    ) -> None:
        data = (b"IDAT", zlib.compress(b"\0abc"))
        pieces = [data, extra] if late else [extra, data]
        contents = of_chunks((b"IHDR", header(1, 1)), *pieces, END)
        assert read(contents).tobytes() == b"abc"
        at = contents.index(extra[0]) + 4 + len(extra[1])
        damaged = contents[:at] + b"????" + contents[at + 4 :]
        assert read(damaged).tobytes() == b"abc"

    def test_an_intent_that_does_not_exist_says_nothing(self) -> None:
        row = bytes([200, 100, 0, 7, 7, 7])
        assert read(small(2, 8, [row], (b"sRGB", b"\x09")), 1).tolist() == (
            read(small(2, 8, [row]), 1).tolist()
        )

    @pytest.mark.parametrize("kind", [b"CgBI", b"ABCD"])
    def test_a_chunk_that_has_to_be_understood(self, kind: bytes) -> None:
        contents = of_chunks((kind, b"1234"), (b"IHDR", header(1, 1)), (b"IDAT", b"x"), END)
        with pytest.raises(UnsupportedFormat, match=kind.decode()):
            read(contents)
        with pytest.raises(MalformedImage):
            read(contents.replace(b"1234", b"1235"))

    @pytest.mark.parametrize(("kind", "depth", "held"), [(0, 1, 1), (2, 8, 3), (6, 16, 4)])
    def test_a_size_that_the_bytes_can_just_hold(self, kind: int, depth: int, held: int) -> None:
        def of_width(width: int) -> bytes:
            data = zlib.compress(b"")
            return of_chunks((b"IHDR", header(width, 24, depth, kind)), (b"IDAT", data), END)

        # zlib makes 1032 bytes of one at most.
        widest = 1032 * len(of_width(1)) // 24 * 8 // (held * depth)
        read_picture(of_width(widest), OutputForm())
        with pytest.raises(MalformedImage, match="fewer bytes"):
            read_picture(of_width(widest + 8), OutputForm())

    def test_a_size_that_the_bytes_cannot_hold(self) -> None:
        data = zlib.compress(bytes(1000))
        bomb = of_chunks((b"IHDR", header(9000, 9000)), (b"IDAT", data), END)
        with pytest.raises(MalformedImage, match="fewer bytes than 9000 x 9000"):
            read_picture(bomb, OutputForm())


@pytest.fixture
def by_pillow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that decodes as :func:`outcome` does, by Pillow alone."""

    def decode(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(png, "_plain", lambda _: None)
            return outcome(*arguments)

    return decode


def outcome(contents: bytes, channels: int = 0, bits: int = 8) -> Any:
    """Return the pixels, or the error's type and text."""
    try:
        return read(contents, channels, bits).tolist()
    except DataError as error:
        return type(error), str(error)


def decodes_here(contents: bytes) -> bool:
    plain = png._plain(memoryview(contents))
    return plain is not None and png._inflated(plain, memoryview(contents)) is not None


GAMMA = (b"gAMA", (45455).to_bytes(4, "big"))
SRGB = (b"sRGB", b"\0")


class TestDecodedHere:
    """Pictures that the kernel decodes have the pixels that Pillow gives, or its errors."""

    pytestmark: ClassVar = pytest.mark.skipif(
        kernel.implementation != "native", reason="Pillow decodes all where Python is the kernel"
    )

    @pytest.mark.parametrize(("kind", "depth"), PNG_KINDS)
    @pytest.mark.parametrize("chunks", [(), (GAMMA,), (SRGB,)], ids=["plain", "gamma", "srgb"])
    def test_every_kind(self, kind: int, depth: int, chunks: Any, by_pillow: Any) -> None:
        contents = random_png(kind, depth, extra=chunks)
        assert decodes_here(contents) is (depth >= 8)
        for channels in (0, 1, 3, 4):
            for bits in (8, 16):
                assert outcome(contents, channels, bits) == by_pillow(contents, channels, bits)

    @pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
    def test_what_pillow_writes(self, mode: str, by_pillow: Any) -> None:
        contents = saved(smooth(), "PNG", mode)
        assert decodes_here(contents)
        assert outcome(contents) == by_pillow(contents)

    def test_in_bands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = random_png(3, 8)
        whole = outcome(contents, 4)
        monkeypatch.setattr(png, "BAND", 22)
        assert outcome(contents, 4) == whole

    @pytest.mark.parametrize("mode", ["L", "RGB", "P"])
    def test_every_damaged_byte(self, mode: str, by_pillow: Any) -> None:
        contents = saved(smooth(3, 4), "PNG", mode)
        for at in range(len(contents)):
            damaged = bytearray(contents)
            damaged[at] ^= 1 << at % 8
            assert outcome(bytes(damaged)) == by_pillow(bytes(damaged)), at
            assert outcome(contents[:at]) == by_pillow(contents[:at]), at

    @pytest.mark.parametrize("more", [b"\0", bytes(1 << 16)], ids=len)
    @pytest.mark.parametrize("cut", [0, 1])
    def test_other_rows_than_the_header_says(self, more: bytes, cut: int, by_pillow: Any) -> None:
        rows = b"\0" + bytes(6) + b"\1" + bytes(6)
        data = zlib.compress(rows[: len(rows) - cut] + (b"" if cut else more))
        contents = of_chunks((b"IHDR", header(2, 2, 8, 2)), (b"IDAT", data), END)
        assert not decodes_here(contents)
        assert outcome(contents) == by_pillow(contents)

    def test_rows_that_end_without_their_sum(self, by_pillow: Any) -> None:
        data = zlib.compress(b"\0" + bytes(6))[:-4]
        contents = of_chunks((b"IHDR", header(2, 1, 8, 2)), (b"IDAT", data), END)
        assert not decodes_here(contents)
        assert outcome(contents) == by_pillow(contents)

    def test_a_window_that_there_is_not(self, by_pillow: Any) -> None:
        data = b"\x88\x1c" + zlib.compress(b"\0" + bytes(6))[2:]
        contents = of_chunks((b"IHDR", header(2, 1, 8, 2)), (b"IDAT", data), END)
        assert not decodes_here(contents)
        assert outcome(contents) == by_pillow(contents)

    def test_a_filter_that_there_is_not(self, by_pillow: Any) -> None:
        data = zlib.compress(b"\5" + bytes(6))
        contents = of_chunks((b"IHDR", header(2, 1, 8, 2)), (b"IDAT", data), END)
        assert outcome(contents) == by_pillow(contents)

    def test_rows_in_many_chunks(self, by_pillow: Any) -> None:
        array = noise((13, 7, 3), most=255).astype(np.uint8)
        data = deflate(array.reshape(13, -1), 3, -1)
        parts = [(b"IDAT", data[at : at + 10]) for at in range(0, len(data), 10)]
        contents = of_chunks((b"IHDR", header(7, 13, 8, 2)), *parts, END)
        assert decodes_here(contents)
        assert outcome(contents) == array.tolist() == by_pillow(contents)

    def test_without_isa_l(self, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = random_png(2, 8)
        expected = outcome(contents)
        monkeypatch.setattr(png, "optional", lambda _: None)
        assert decodes_here(contents)
        assert outcome(contents) == expected

    def test_a_bomb_takes_no_more_than_its_rows(self) -> None:
        data = zlib.compress(bytes(1 << 24))
        contents = of_chunks((b"IHDR", header(2, 1, 8, 2)), (b"IDAT", data), END)
        plain = png._plain(memoryview(contents))
        assert plain is not None
        tracemalloc.start()
        try:
            assert png._inflated(plain, memoryview(contents)) is None
            assert tracemalloc.get_traced_memory()[1] < 1 << 18
        finally:
            tracemalloc.stop()
