from __future__ import annotations

import io
import struct
import sys
from types import ModuleType
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedImage, WrongFeatureType
from streamrec.formats.images import picture
from streamrec.formats.images.image import decode_image, read_picture
from streamrec.formats.images.picture import (
    CropWindow,
    OutputForm,
    Picture,
    at_least,
    bands,
    check_channels,
    check_size,
    fill_resized,
    is_fast,
    library,
    optional,
    refusing,
    take_window,
    turbo,
)
from tests.formats.pictures.encoded import noise, saved, smooth

SIDES = st.integers(1, 40)


@given(height=SIDES, width=SIDES, target=st.tuples(SIDES, SIDES), channels=st.sampled_from([1, 3]))
def test_pillows_bilinear(height: int, width: int, target: tuple[int, int], channels: int) -> None:
    pixels = smooth(height, width, channels)
    out = np.empty((*target, channels), np.uint8)
    fill_resized(read_picture(saved(pixels, "PNG"), OutputForm(channels)), out)
    expected = PIL.Image.fromarray(pixels).resize(target[::-1], PIL.Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(out, np.asarray(expected).reshape(out.shape))


def test_fills_a_part_of_an_array() -> None:
    rows = np.zeros((3, 4, 5, 3), np.uint8)
    fill_resized(read_picture(saved(smooth(), "JPEG"), OutputForm(3)), rows[1])
    assert [row.any() for row in rows] == [False, True, False]


def test_corrupt_pixels() -> None:
    picture = read_picture(saved(smooth(), "JPEG")[:-9], OutputForm(3))
    with pytest.raises(MalformedImage, match="truncated"):
        fill_resized(picture, np.empty((4, 5, 3), np.uint8))


def test_the_least_size_to_decode() -> None:
    assert at_least(None) == (0, 0)
    assert at_least((4, 5)) == (8, 10)


@pytest.mark.parametrize("begin", [b"\xff\xd8\xff\xe0", b"GIF89a", b"II*\0", b"BM\0\0"])
def test_a_begin_alone_is_told_without_words_of_python(begin: bytes) -> None:
    with pytest.raises(
        MalformedImage, match=r"it is (corrupt or )?truncated; replace it"
    ) as caught:
        decode_image(begin)
    assert "buffer" not in str(caught.value)


@pytest.mark.parametrize("error", [struct.error("x"), IndexError("x"), TypeError("x")])
def test_errors_of_a_readers_code_are_not_quoted(error: Exception) -> None:
    with pytest.raises(MalformedImage, match="the GIF cannot be decoded: it is"), refusing("GIF"):
        raise error


def test_what_pillow_raises_is_a_malformed_image() -> None:
    with pytest.raises(MalformedImage, match=r"the PNG cannot be decoded \(odd\): it is corrupt"):
        with refusing("PNG"):
            raise SyntaxError("odd")


@pytest.mark.parametrize("name", ["PIL.Image", "simplejpeg"])
def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=r"which is not installed; run pip install -e '\.\[image(-nogil)?\]'"
    ):
        library(name)


@pytest.mark.parametrize(
    ("gil", "fork", "name"),
    [(True, True, "simplejpeg"), (False, True, "leanjpeg_simple"), (False, False, "simplejpeg")],
)
def test_the_binding_of_libjpeg_turbo(
    gil: bool, fork: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {each: ModuleType(each) for each in ("simplejpeg", "leanjpeg_simple")}
    monkeypatch.setitem(sys.modules, "simplejpeg", modules["simplejpeg"])
    monkeypatch.setattr(picture, "optional", modules.get if fork else lambda _: None)
    monkeypatch.setattr(picture, "has_gil", lambda: gil)
    assert turbo() is modules[name]


def test_what_is_optional() -> None:
    assert optional("sys") is sys
    assert optional("streamrec.no_such_module") is None


@pytest.mark.parametrize("name", ["FLOAT", "integer_fast", None, 1, []])
def test_no_transform(name: Any) -> None:
    with pytest.raises(ConfigError, match="dct_method is '' or 'INTEGER_FAST' or"):
        is_fast(name)


def test_transforms() -> None:
    assert [is_fast(name) for name in ("", "INTEGER_FAST", "INTEGER_ACCURATE")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("shape", [(3, 4, 3), (12, 1, 1), (2, 2, 3, 4)])
def test_a_limit_of_pixels(shape: tuple[int, ...]) -> None:
    check_size(shape, 12)
    with pytest.raises(MalformedImage, match="= 12 pixels, but 11 are allowed"):
        check_size(shape, 11)


def test_channels() -> None:
    check_channels("GIF", 3, (0, 3))
    with pytest.raises(WrongFeatureType, match="this GIF picture gives channels 0 or 3, not 1"):
        check_channels("GIF", 1, (0, 3))


class TestWindowed:
    ARRAY = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)

    def picture(self) -> Picture:
        return Picture(self.ARRAY.shape, lambda out: np.copyto(out, self.ARRAY))

    def test_without_a_decoder_of_parts_the_whole_picture_is_work(self) -> None:
        picture = self.picture()._replace(work=7)
        part = take_window(picture, CropWindow(1, 2, 3, 4))
        assert (part.nbytes, part.work) == (3 * 4 * self.ARRAY.shape[2], 7 + self.ARRAY.nbytes)

    @pytest.mark.parametrize(
        "window", [CropWindow(0, 0, 5, 7), CropWindow(1, 2, 3, 4), CropWindow(4, 6, 1, 1)]
    )
    def test_cuts_the_window_out_of_the_whole(self, window: CropWindow) -> None:
        top, left, height, width = window
        got = take_window(self.picture(), window).decode()
        np.testing.assert_array_equal(got, self.ARRAY[top : top + height, left : left + width])

    def test_decodes_the_window_alone_where_that_can_be_done(self) -> None:
        def fill_part(window: CropWindow, out: Any) -> bool:
            out[...] = sum(window)
            return True

        picture = self.picture()._replace(fill_part=fill_part)
        assert (take_window(picture, CropWindow(1, 2, 3, 4)).decode() == 10).all()

    @pytest.mark.parametrize("window", [(0, 0, 6, 1), (0, 1, 1, 7), (-1, 0, 2, 2), (0, 0, 1, 0)])
    def test_refuses_a_window_that_is_not_inside(self, window: Any) -> None:
        with pytest.raises(WrongFeatureType, match="5 x 7 pixels, which do not hold the window"):
            take_window(self.picture(), CropWindow(*window))


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        ((512, 512), [512]),
        ((513, 513), [511, 2]),
        ((1 << 18, 3), [1, 1, 1]),
        ((1 << 19, 2), [1, 1]),
        ((1, 1 << 18), [1 << 18]),
        ((1, (1 << 18) + 1), [1 << 18, 1]),
    ],
)
def test_bands_of_a_large_image(size: tuple[int, int], rows: list[int]) -> None:
    image = PIL.Image.new("L", size)
    assert [part.height for _, part in bands(image)] == rows
    assert [part.stop - part.start for part, _ in bands(image)] == rows


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WebP", "JPEG"])
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA"])
def test_a_picture_in_bands_is_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    if kind == "JPEG" and mode not in ("L", "RGB"):
        return
    image = PIL.Image.fromarray(noise((9, 40, 4)).astype(np.uint8)).convert(mode)
    file = io.BytesIO()
    image.save(file, kind, **({"lossless": True} if kind == "WebP" else {}))
    whole = decode_image(file.getvalue())
    monkeypatch.setattr(picture, "BAND", 70)
    np.testing.assert_array_equal(decode_image(file.getvalue()), whole)
