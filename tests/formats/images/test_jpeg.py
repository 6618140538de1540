from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamrec.errors import MalformedImage, PictureTooLarge, UnsupportedFormat, WrongFeatureType
from streamrec.formats.images import jpeg
from streamrec.formats.images.image import (
    decode_and_crop_jpeg,
    decode_image,
    decode_jpeg,
    read_picture,
)
from streamrec.formats.images.jpeg import MOST_SCANS, _bounds, _JPEGLayout, _tidy, decode_region
from streamrec.formats.images.picture import CropWindow, OutputForm
from tests.by_day import stops
from tests.formats.pictures.encoded import TURBO, saved, smooth, without_segment

if TYPE_CHECKING:
    from streamrec.formats.images.picture import Picture


JPEGS = {
    "colour": saved(smooth(67, 93), "JPEG"),
    "gray": saved(smooth(67, 93, channels=1), "JPEG"),
    "progressive": saved(smooth(67, 93), "JPEG", progressive=True),
    "fine": saved(smooth(67, 93), "JPEG", subsampling="4:4:4"),
    "halved": saved(smooth(67, 93), "JPEG", subsampling="4:2:2"),
    "coarse": saved(smooth(67, 93), "JPEG", quality=20, restart_marker_rows=1),
}
WINDOW = CropWindow(20, 30, 16, 24)


def decode(contents: bytes, window: CropWindow = WINDOW, channels: int = 3) -> Any:
    """Return the window's pixels; ``None`` if the whole is to be decoded."""
    out = np.empty((window.height, window.width, channels), np.uint8)
    return out if decode_region(memoryview(contents), window, True, out) else None


@st.composite
def windows(draw: st.DrawFn) -> CropWindow:
    top, left = draw(st.integers(0, 66)), draw(st.integers(0, 92))
    return CropWindow(top, left, draw(st.integers(1, 67 - top)), draw(st.integers(1, 93 - left)))


class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("nvidia.nvimgcodec")

    @pytest.mark.parametrize("dct_method", ["", "INTEGER_ACCURATE"])
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("kind", JPEGS)
    @given(window=windows())
    def test_gives_what_is_cut_out_of_the_whole(
        self, kind: str, channels: int, dct_method: str, window: CropWindow
    ) -> None:
        out = np.empty((window.height, window.width, channels), np.uint8)
        alone = decode_region(memoryview(JPEGS[kind]), window, not dct_method, out)
        assert alone == (window.width > 1)
        whole = decode_jpeg(JPEGS[kind], channels, dct_method=dct_method)
        top, left, height, width = window
        if alone:
            np.testing.assert_array_equal(out, whole[top : top + height, left : left + width])

    def test_ignores_orientation(self) -> None:
        from PIL import Image

        tags = Image.Exif()
        tags[0x112] = 6
        turned = saved(smooth(67, 93), "JPEG", exif=tags)
        np.testing.assert_array_equal(decode(turned), decode(JPEGS["colour"]))

    def test_each_thread_has_a_decoder_of_its_own(self) -> None:
        found: list[Any] = []
        jpeg = JPEGS["colour"]
        threads = [
            threading.Thread(target=lambda: found.extend(decode(jpeg) for _ in range(50)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 150
        assert all((each == found[0]).all() for each in found)

    @pytest.mark.parametrize("missing", [1, 2, 300])
    def test_leaves_truncated_pictures_to_the_whole(self, missing: int) -> None:
        assert decode(JPEGS["colour"][:-missing]) is None

    def test_leaves_what_it_cannot_read_to_the_whole(self) -> None:
        assert decode(b"no picture\xff\xd9") is None

    @given(data=st.data())
    def test_mutations_raise_nothing(self, data: st.DataObject) -> None:
        octets = bytearray(JPEGS["colour"])
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(octets) - 3))
            octets[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        decode(bytes(octets))


@pytest.mark.parametrize("kind", JPEGS)
def test_without_the_library_the_window_is_cut_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg, "optional", lambda _: None)
    assert decode(JPEGS[kind]) is None
    np.testing.assert_array_equal(
        decode_and_crop_jpeg(JPEGS[kind], list(WINDOW)), decode_image(JPEGS[kind])[20:36, 30:54]
    )


COLOUR = saved(smooth(), "JPEG")
GRAY = saved(smooth(channels=1), "JPEG")
CMYK = saved(smooth(), "JPEG", "CMYK")
FRAME = COLOUR.index(b"\xff\xc0")


def read(contents: bytes, channels: int = 0) -> Picture:
    return read_picture(contents, OutputForm(channels))


def changed(at: int, octets: bytes) -> bytes:
    return COLOUR[:at] + octets + COLOUR[at + len(octets) :]


@pytest.mark.parametrize(
    ("contents", "channels", "shape"),
    [
        (COLOUR, 0, (29, 37, 3)),
        (COLOUR, 1, (29, 37, 1)),
        (GRAY, 0, (29, 37, 1)),
        (GRAY, 3, (29, 37, 3)),
        (CMYK, 0, (29, 37, 3)),
    ],
)
def test_the_size_is_known_before_the_pixels(
    contents: bytes, channels: int, shape: tuple[int, ...]
) -> None:
    picture = read(contents, channels)
    assert picture.shape == shape
    assert picture.decode().shape == shape


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_the_pixels_are_about_those_that_were_written(options: dict[str, Any]) -> None:
    decoded = read(saved(smooth(), "JPEG", quality=95, **options)).decode()
    assert np.abs(decoded.astype(int) - smooth()).mean() < 4


def test_gray_is_the_brightness() -> None:
    gray = read(COLOUR, 1).decode()[..., 0].astype(int)
    assert np.abs(gray - np.asarray(Image.fromarray(smooth()).convert("L"))).max() < 12


@pytest.mark.parametrize("adobe", [True, False])
def test_inks_become_colours(adobe: bool) -> None:
    picture = CMYK if adobe else without_segment(CMYK, 0xEE)
    decoded = read(picture).decode().astype(int)
    # Without Adobe's marker the same numbers are inks that are not inverted.
    expected = smooth() if adobe else np.zeros_like(smooth())
    assert np.abs(decoded - expected).mean() < 6


def test_orientation_is_ignored() -> None:
    tags = Image.Exif()
    tags[0x112] = 6
    turned = saved(smooth(), "JPEG", exif=tags)
    np.testing.assert_array_equal(read(turned).decode(), read(COLOUR).decode())


@pytest.mark.parametrize("dct_method", ["", "INTEGER_ACCURATE"])
@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xda"])
@pytest.mark.parametrize("between", [b"", b"junk", b"\xff\xff\xff", b"\xff\x00x"])
def test_what_libjpeg_passes_over_between_segments(
    between: bytes, marker: bytes, dct_method: str
) -> None:
    for picture in (COLOUR, CMYK):
        at = picture.index(marker)
        contents = picture[:at] + between + picture[at:]
        expected = decode_jpeg(picture, dct_method=dct_method)
        np.testing.assert_array_equal(decode_jpeg(contents, dct_method=dct_method), expected)


def test_passes_over_damage_behind_the_pixels() -> None:
    np.testing.assert_array_equal(
        decode_jpeg(COLOUR[:-2] + b"junk" + COLOUR[-2:]), decode_jpeg(COLOUR)
    )


def test_passes_over_damage_among_the_pixels() -> None:
    at = len(COLOUR) - 100
    decoded = decode_jpeg(changed(at, bytes(20)))
    np.testing.assert_array_equal(decoded[:8], decode_jpeg(COLOUR)[:8])


@pytest.mark.parametrize(
    ("least", "size"),
    [
        ((0, 0), (29, 37)),
        ((99, 1), (29, 37)),
        ((16, 1), (29, 37)),
        ((15, 19), (15, 19)),
        ((11, 14), (11, 14)),
        ((8, 10), (8, 10)),
        ((3, 5), (4, 5)),
        ((1, 1), (4, 5)),
    ],
)
def test_a_fraction_has_at_least_the_size_that_is_asked_for(
    least: tuple[int, int], size: tuple[int, int]
) -> None:
    contents = saved(smooth(), "JPEG", quality=95, subsampling="4:4:4")
    shape = read_picture(contents, OutputForm(3, least=least)).shape
    assert shape == (*size, 3)
    decoded = read_picture(contents, OutputForm(3, least=least)).decode()
    expected = Image.fromarray(smooth()).resize(size[::-1], Image.Resampling.BOX)
    assert np.abs(decoded.astype(int) - np.asarray(expected)).mean() < 30


def test_a_limit_is_that_of_the_whole_picture() -> None:
    with pytest.raises(MalformedImage, match="29 x 37"):
        read_picture(COLOUR, OutputForm(3, least=(4, 4), max_pixels=29 * 37 - 1))


@pytest.mark.parametrize("end", stops(range(3, COLOUR.index(b"\xff\xda") + 1), every=4))
def test_a_header_that_ends_anywhere(end: int) -> None:
    with pytest.raises(MalformedImage, match="truncated"):
        read(COLOUR[:end]).decode()


@pytest.mark.parametrize("missing", [1, 2, 10, 200])
def test_truncated_pixels(missing: int) -> None:
    picture = read(COLOUR[: len(COLOUR) - 2 - missing])
    with pytest.raises(MalformedImage, match="truncated"):
        picture.decode()


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (changed(FRAME + 1, b"\xd9"), "cannot be decoded"),
        (changed(FRAME + 9, b"\x02"), "cannot be decoded"),
        (changed(FRAME, b"\xff\xfe"), "cannot be decoded"),
        (COLOUR[:FRAME] + COLOUR[FRAME : FRAME + 19] + COLOUR[FRAME:], "cannot be decoded"),
    ],
)
def test_what_is_refused(contents: bytes, words: str) -> None:
    with pytest.raises(MalformedImage, match=words):
        read(contents).decode()


TWO = changed(FRAME, b"\xff\xc0\0\x0e\x08\0\x1d\0\x25\x02\1\x11\0\2\x11\1" + b"\xff\xfe\0\x03")


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (changed(FRAME, b"\xff\xc3"), "is lossless"),
        (changed(FRAME, b"\xff\xc5"), "is hierarchical"),
        (changed(FRAME + 4, b"\x0c"), "12 bits a channel"),
        (changed(FRAME + 4, b"\x10"), "16 bits a channel"),
        (changed(FRAME + 5, b"\0\0"), "height only after its pixels"),
        (TWO, "has 2 channels"),
    ],
)
def test_what_is_not_supported_is_not_called_corrupt(contents: bytes, words: str) -> None:
    with pytest.raises(UnsupportedFormat, match=words):
        read(contents).decode()


def sampled(array: Any, factors: list[int], mode: str | None = None) -> bytes:
    """Return a JPEG whose header says other sampling factors, each ``16 * horizontal + vertical``.

    Its pixels then mean something else, which is of no matter to a decoder as long as there are
    enough of them.
    """
    contents = bytearray(saved(array, "JPEG", mode, subsampling="4:4:4", quality=100))
    at = contents.index(b"\xff\xc0") + 11
    for channel, factor in enumerate(factors):
        contents[at + 3 * channel] = factor
    return bytes(contents)


UNNAMED = {
    "cmyk 4:2:0": saved(smooth(), "JPEG", "CMYK", subsampling="4:2:0"),
    "cmyk 4:2:2": saved(smooth(), "JPEG", "CMYK", subsampling="4:2:2"),
    "4:1:0": sampled(smooth(), [0x42, 0x11, 0x11]),
    "colours finer than brightness": sampled(smooth(), [0x11, 0x21, 0x21]),
    "of three rows": sampled(smooth(), [0x13, 0x11, 0x11]),
    "by 441": sampled(smooth(), [0x14, 0x11, 0x11]),
}


@pytest.mark.parametrize("dct_method", ["", "INTEGER_ACCURATE"])
@pytest.mark.parametrize("kind", UNNAMED)
def test_samplings_that_turbojpeg_cannot_name(kind: str, dct_method: str) -> None:
    contents = UNNAMED[kind]
    picture = read_picture(contents, OutputForm(dct_method=dct_method))
    assert picture.shape == (29, 37, 3)
    image = Image.open(io.BytesIO(contents))
    if image.mode == "CMYK":
        assert np.abs(picture.decode().astype(int) - smooth()).mean() < 9
        return
    difference = np.abs(picture.decode().astype(int) - np.asarray(image))
    assert difference.max() <= (0 if dct_method else 12)  # the fast transform's own difference
    image = Image.open(io.BytesIO(contents))
    image.draft("L", image.size)
    gray = read_picture(contents, OutputForm(1, dct_method=dct_method)).decode()[..., 0]
    assert np.abs(gray.astype(int) - np.asarray(image)).max() <= (0 if dct_method else 12)


@pytest.mark.parametrize("kind", UNNAMED)
def test_such_a_sampling_with_a_smaller_size_a_window_or_cut_off(kind: str) -> None:
    contents = UNNAMED[kind]
    # The fork of simplejpeg has a name for one of them, and so decodes it at a fraction.
    is_named = (kind, TURBO) == ("by 441", "leanjpeg_simple")
    smaller = (4, 5, 3) if is_named else (29, 37, 3)
    assert read_picture(contents, OutputForm(3, least=(4, 4))).shape == smaller
    part = read_picture(contents, OutputForm(3, window=CropWindow(4, 5, 6, 7))).decode()
    np.testing.assert_array_equal(part, read(contents, 3).decode()[4:10, 5:12])
    with pytest.raises(MalformedImage, match="29 x 37"):
        read_picture(contents, OutputForm(3, max_pixels=29 * 37 - 1))
    with pytest.raises(MalformedImage, match="truncated"):
        read(contents[: contents.index(b"\xff\xda") + 40]).decode()


@pytest.mark.parametrize(("contents", "channels"), [(COLOUR, 4), (CMYK, 1), (CMYK, 4)])
def test_channels_that_are_not_given(contents: bytes, channels: int) -> None:
    with pytest.raises(WrongFeatureType, match=f"not {channels}; ask for one"):
        read(contents, channels)


def of_scans(count: int, pixels: tuple[int, int] = (29, 37), most: int = 1 << 20) -> Picture:
    """Read a progressive picture whose last scan, which changes nothing, stands there again."""
    contents = saved(smooth(*pixels, channels=1), "JPEG", progressive=True)
    last = contents.rindex(b"\xff\xda")
    more = count - contents.count(b"\xff\xda")
    repeated = contents[:last] + contents[last:-2] * more + contents[last:]
    return read_picture(repeated, OutputForm(1, max_pixels=most))


def test_more_scans_than_any_encoder_writes() -> None:
    assert of_scans(MOST_SCANS).decode().shape == (29, 37, 1)
    with pytest.raises(PictureTooLarge, match="has 101 scans of 1,073 pixels, but 100 are allowed"):
        of_scans(MOST_SCANS + 1)


def test_large_pictures_may_have_fewer_scans() -> None:
    most = 64 * 64
    assert of_scans(32, (64, 64), most).shape == (64, 64, 1)
    with pytest.raises(PictureTooLarge, match="33 scans of 4,096 pixels, but 32 are allowed"):
        of_scans(33, (64, 64), most)


@pytest.mark.parametrize(("progressive", "work"), [(False, 0), (True, 2 * 64 * 64 * 3 // 2)])
def test_coefficients_of_several_scans_are_kept(progressive: bool, work: int) -> None:
    assert read(saved(smooth(64, 64), "JPEG", progressive=progressive)).work == work


def test_a_profile_before_the_first_scan_does_not_hide_it() -> None:
    contents = saved(smooth(64, 64), "JPEG", progressive=True, icc_profile=b"\xff\xda" * 9000)
    assert read(contents).work == 2 * 64 * 64 * 3 // 2


@pytest.mark.parametrize(
    ("size", "sides", "blocks"),
    [
        ((1, 1), "11", 1),
        ((8, 8), "11", 1),
        ((8, 9), "11", 2),
        ((9, 8), "11", 2),
        ((17, 17), "11", 9),
        ((8, 8), "11 11 11", 3),
        ((16, 16), "22 11 11", 6),
        ((16, 17), "22 11 11", 12),
        ((17, 16), "22 11 11", 12),
        ((8, 16), "21 11 11", 4),
        ((9, 16), "21 11 11", 8),
        ((16, 8), "12 11 11", 4),
        ((32, 32), "41 11 11", 24),
    ],
)
def test_coefficients_are_64_numbers_a_block(
    size: tuple[int, int], sides: str, blocks: int
) -> None:
    """T.81, A.2: a unit holds as many blocks of each channel as its sides say."""
    channels = b"".join(bytes([0, octet, 0]) for octet in bytes.fromhex(sides))
    height, width = (side.to_bytes(2, "big") for side in size)
    frame = b"\x08" + height + width + bytes([len(channels) // 3]) + channels
    assert _JPEGLayout(frame=frame).coefficients == 64 * 2 * blocks


@pytest.mark.parametrize("between", [b"", b"x", b"\xff", b"\xff\xd0"])
def test_segments_stand_where_their_lengths_say(between: bytes) -> None:
    """Behind the two bytes of the beginning; a scan's data is not looked through."""
    frame, scan = b"\xff\xc0\0\4ab", b"\xff\xda\0\3s"
    at = 2 + len(between)
    octets = b"\xff\xd8" + between + frame + scan + b"\xff\xc4\0\4data"
    assert [*_bounds(octets)] == [(at, at + 6), (at + 6, at + 11)]
    assert _tidy(octets) == b"\xff\xd8" + octets[at:]
