from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.images import jpeg_region
from streamrec.formats.images.image import decode_and_crop_jpeg, decode_image, decode_jpeg
from streamrec.formats.images.jpeg_region import decode_region
from streamrec.formats.images.picture import Window
from tests.formats.pictures.encoded import saved, smooth

JPEGS = {
    "colour": saved(smooth(67, 93), "JPEG"),
    "gray": saved(smooth(67, 93, channels=1), "JPEG"),
    "progressive": saved(smooth(67, 93), "JPEG", progressive=True),
    "fine": saved(smooth(67, 93), "JPEG", subsampling="4:4:4"),
    "halved": saved(smooth(67, 93), "JPEG", subsampling="4:2:2"),
    "coarse": saved(smooth(67, 93), "JPEG", quality=20, restart_marker_rows=1),
}
WINDOW = Window(20, 30, 16, 24)


def decode(contents: bytes, window: Window = WINDOW, channels: int = 3) -> Any:
    """Return the window's pixels; ``None`` if the whole is to be decoded."""
    out = np.empty((window.height, window.width, channels), np.uint8)
    return out if decode_region(memoryview(contents), window, True, out) else None


@st.composite
def windows(draw: st.DrawFn) -> Window:
    top, left = draw(st.integers(0, 66)), draw(st.integers(0, 92))
    return Window(top, left, draw(st.integers(1, 67 - top)), draw(st.integers(1, 93 - left)))


class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("nvidia.nvimgcodec")

    @pytest.mark.parametrize("dct_method", ["", "INTEGER_ACCURATE"])
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("kind", JPEGS)
    @given(window=windows())
    def test_gives_what_is_cut_out_of_the_whole(
        self, kind: str, channels: int, dct_method: str, window: Window
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
    monkeypatch.setattr(jpeg_region, "optional", lambda _: None)
    assert decode(JPEGS[kind]) is None
    np.testing.assert_array_equal(
        decode_and_crop_jpeg(JPEGS[kind], list(WINDOW)), decode_image(JPEGS[kind])[20:36, 30:54]
    )
