"""Pictures, held against what TensorFlow makes of the same bytes."""

from __future__ import annotations

import struct
import subprocess
import zlib
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec.datasets import pictures
from streamrec.errors import ConfigError, DataError
from streamrec.formats.images.image import (
    decode_and_crop_jpeg,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    read_picture,
)
from streamrec.formats.images.picture import OutputForm, fill_resized
from tests.by_day import pairwise
from tests.formats.beside_tensorflow import IN_ONE_WORKER, refusals, tf
from tests.formats.pictures.encoded import (
    PNG_KINDS,
    animation,
    control,
    frame,
    made_gif,
    noise,
    random_png,
    saved,
    smooth,
    transparency,
    without_segment,
)

pytestmark = IN_ONE_WORKER

CHANNELS = (0, 1, 3, 4)
DCT_METHODS = ["", "INTEGER_FAST", "INTEGER_ACCURATE"]
GAMMAS = {
    "none": [],
    "sRGB": [(b"sRGB", b"\0")],
    "gAMA": [(b"gAMA", struct.pack(">I", 55555))],
    "both": [(b"gAMA", struct.pack(">I", 55555)), (b"sRGB", b"\0")],
}
CMYK = saved(smooth(), "JPEG", "CMYK")
JPEGS = {
    "colour": saved(smooth(), "JPEG"),
    "gray": saved(smooth(channels=1), "JPEG"),
    "progressive": saved(smooth(), "JPEG", progressive=True),
    "fine": saved(smooth(), "JPEG", subsampling="4:4:4"),
    "halved": saved(smooth(), "JPEG", subsampling="4:2:2"),
    "coarse": saved(smooth(), "JPEG", quality=20, restart_marker_rows=1),
    "cmyk": CMYK,
    "other cmyk": without_segment(CMYK, 0xEE),
}
RGBA = smooth(channels=4)
OTHERS = {
    "gif": saved(RGBA[..., :3], "GIF"),
    "gray gif": saved(RGBA[..., 0].copy(), "GIF"),
    **{f"moving gif {k}": animation("GIF", disposal=k) for k in range(4)},
    **{f"bmp {mode}": saved(RGBA, "BMP", mode) for mode in ("L", "P", "RGB", "RGBA")},
    **{f"webp {mode}": saved(RGBA, "WEBP", mode, quality=70) for mode in ("RGB", "RGBA")},
    **{f"lossless webp {m}": saved(RGBA, "WEBP", m, lossless=True) for m in ("RGB", "RGBA")},
    **{f"moving webp {mode}": animation("WEBP", mode=mode) for mode in ("RGB", "RGBA")},
}


def compare(theirs: Any, ours: Any) -> None:
    """Check that both give the same, or that both refuse."""
    try:
        expected = theirs().numpy()
    except refusals():
        with pytest.raises(DataError):
            ours()
        return
    got = ours()
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


TRANSPARENT = [(kind, depth) for kind, depth in PNG_KINDS if kind in (0, 2, 3)]
AXES = (PNG_KINDS, [False, True], ["uint8", "uint16"], CHANNELS)
OF_AXES = ("form", "interlaced", "dtype", "channels")


class TestPng:
    def check(self, contents: bytes, channels: int, dtype: str) -> None:
        compare(
            lambda: tf.io.decode_png(contents, channels, dtype),
            lambda: decode_png(contents, channels, dtype),
        )

    @pytest.mark.parametrize((*OF_AXES, "gamma"), pairwise(*AXES, list(GAMMAS)))
    def test_every_kind(
        self, form: tuple[int, int], interlaced: bool, dtype: str, channels: int, gamma: str
    ) -> None:
        contents = random_png(*form, interlaced=interlaced, extra=GAMMAS[gamma])
        self.check(contents, channels, dtype)

    @pytest.mark.parametrize(OF_AXES, pairwise(TRANSPARENT, *AXES[1:]))
    def test_transparency(
        self, form: tuple[int, int], interlaced: bool, dtype: str, channels: int
    ) -> None:
        extra = [transparency(*form)]
        contents = random_png(*form, interlaced=interlaced, extra=extra, seed=5)
        self.check(contents, channels, dtype)


@pytest.mark.parametrize(
    ("kind", "channels", "dct_method"), pairwise(list(JPEGS), CHANNELS, DCT_METHODS)
)
def test_jpeg(kind: str, channels: int, dct_method: str) -> None:
    compare(
        lambda: tf.io.decode_jpeg(JPEGS[kind], channels, dct_method=dct_method),
        lambda: decode_jpeg(JPEGS[kind], channels, dct_method=dct_method),
    )


@pytest.mark.parametrize(
    "path", sorted(Path(pictures.__path__[0]).glob("*.jpg")), ids=lambda p: p.stem
)
def test_photographs(path: Path) -> None:
    contents = path.read_bytes()
    compare(lambda: tf.io.decode_image(contents), lambda: decode_image(contents))
    accurate = tf.io.decode_jpeg(contents, dct_method="INTEGER_ACCURATE").numpy()
    np.testing.assert_array_equal(decode_jpeg(contents, dct_method="INTEGER_ACCURATE"), accurate)


def test_refuses_a_transform_that_neither_has() -> None:
    with pytest.raises(refusals()):
        tf.io.decode_jpeg(JPEGS["colour"], dct_method="FLOAT")
    with pytest.raises(ConfigError, match="dct_method is '' or 'INTEGER_FAST'"):
        decode_jpeg(JPEGS["colour"], dct_method="FLOAT")


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("kind", JPEGS)
def test_decode_image_uses_the_fast_transform(kind: str, channels: int) -> None:
    compare(
        lambda: tf.io.decode_image(JPEGS[kind], channels),
        lambda: decode_image(JPEGS[kind], channels),
    )


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("missing", [1, 2, 3, 20, 300])
def test_truncated_jpegs(kind: str, missing: int) -> None:
    contents = JPEGS[kind][:-missing]
    compare(lambda: tf.io.decode_jpeg(contents), lambda: decode_jpeg(contents))


@pytest.mark.parametrize("kind", JPEGS)
@given(data=st.data())
def test_damaged_jpegs(kind: str, data: st.DataObject) -> None:
    contents = bytearray(JPEGS[kind])
    begin = contents.index(b"\xff\xda") + 14
    places = [k for k in range(begin, len(contents) - 3) if 0xFF not in contents[k - 1 : k + 1]]
    contents[data.draw(st.sampled_from(places))] = data.draw(st.integers(0, 0xFE))
    compare(
        lambda: tf.io.decode_jpeg(bytes(contents), dct_method="INTEGER_ACCURATE"),
        lambda: decode_jpeg(bytes(contents), dct_method="INTEGER_ACCURATE"),
    )


@pytest.mark.parametrize("dct_method", DCT_METHODS)
@pytest.mark.parametrize("kind", JPEGS)
def test_jpegs_with_something_between_the_pixels_and_the_end(kind: str, dct_method: str) -> None:
    contents = JPEGS[kind][:-2] + b"something" + JPEGS[kind][-2:]
    compare(
        lambda: tf.io.decode_jpeg(contents, dct_method=dct_method),
        lambda: decode_jpeg(contents, dct_method=dct_method),
    )


@pytest.mark.parametrize("dct_method", DCT_METHODS)
@pytest.mark.parametrize("kind", JPEGS)
def test_jpegs_with_something_between_segments(kind: str, dct_method: str) -> None:
    for marker in (b"\xff\xdb", b"\xff\xc4", b"\xff\xda"):
        contents = (b"junk" + marker).join(JPEGS[kind].split(marker, 1))
        compare(
            lambda contents=contents: tf.io.decode_jpeg(contents, dct_method=dct_method),
            lambda contents=contents: decode_jpeg(contents, dct_method=dct_method),
        )


@pytest.mark.parametrize("kind", JPEGS)
def test_crops_are_the_same_but_for_the_colours_at_their_edges(kind: str) -> None:
    for window in ([0, 0, 29, 37], [5, 9, 17, 21], [28, 36, 1, 1], [0, 16, 29, 16]):
        contents = JPEGS[kind]
        expected = tf.io.decode_and_crop_jpeg(contents, window).numpy()
        got = decode_and_crop_jpeg(contents, window)
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got[2:-2, 2:-2], expected[2:-2, 2:-2])
    for outside in ([5, 9, 25, 1], [0, 0, 0, 1], [-1, 0, 1, 1]):
        compare(
            lambda window=outside: tf.io.decode_and_crop_jpeg(JPEGS[kind], window),
            lambda window=outside: decode_and_crop_jpeg(JPEGS[kind], window),
        )


FACTORS = [f"{h}x{v}" for h in range(1, 5) for v in range(1, 5)]
SAMPLINGS = [f"{luma},{chroma},{chroma}" for luma in FACTORS for chroma in FACTORS]


def with_sampling(sampling: str, *options: str) -> bytes:
    """Return a JPEG by libjpeg's own tool; one without bytes if it refuses the sampling."""
    pixels = smooth(61, 83)
    head = b"P6 %d %d 255\n" % pixels.shape[1::-1]
    command = ["cjpeg", "-sample", sampling, *options]
    made = subprocess.run(command, input=head + pixels.tobytes(), capture_output=True, check=False)
    return made.stdout if made.returncode == 0 else b""


@pytest.mark.skipif(which("cjpeg") is None, reason="cjpeg is not installed (libjpeg-turbo-progs)")
class TestSamplings:
    def check(self, sampling: str, *options: str) -> bool:
        contents = with_sampling(sampling, *options)
        for channels in (3, 1) if contents else ():
            theirs = tf.io.decode_jpeg(contents, channels, dct_method="INTEGER_ACCURATE").numpy()
            ours = decode_jpeg(contents, channels, dct_method="INTEGER_ACCURATE")
            np.testing.assert_array_equal(ours, theirs)
            fast = tf.io.decode_jpeg(contents, channels).numpy().astype(int)
            # Pillow has the accurate transform alone, where TurboJPEG has no name of a sampling.
            assert np.abs(decode_jpeg(contents, channels) - fast).max() <= 6
        return bool(contents)

    @pytest.mark.parametrize("sampling", ["4x1,1x2,1x2", "1x1,2x2,2x2", "4x2,1x1,1x1"])
    def test_some_that_turbojpeg_cannot_name(self, sampling: str) -> None:
        assert self.check(sampling)
        assert self.check(sampling, "-progressive")

    @pytest.mark.night
    def test_every_one(self) -> None:
        assert sum(self.check(sampling) for sampling in SAMPLINGS) == 47
        each = [f"{a},{b},1x1" for a in FACTORS for b in FACTORS]
        assert sum(self.check(sampling, "-arithmetic") for sampling in each) > 50


UNEVEN_CMYK = [
    saved(smooth(), "JPEG", "CMYK", subsampling=sampling) for sampling in ("4:2:0", "4:2:2")
]


@pytest.mark.parametrize("adobe", [True, False])
@pytest.mark.parametrize("contents", UNEVEN_CMYK, ids=["4:2:0", "4:2:2"])
def test_inks_of_uneven_sampling(contents: bytes, adobe: bool) -> None:
    contents = contents if adobe else without_segment(contents, 0xEE)
    compare(
        lambda: tf.io.decode_jpeg(contents, dct_method="INTEGER_ACCURATE"),
        lambda: decode_jpeg(contents, dct_method="INTEGER_ACCURATE"),
    )


@given(data=st.data())
def test_frames_of_a_gif_anywhere(data: st.DataObject) -> None:
    def number(most: int) -> int:
        return data.draw(st.integers(0, most))

    blocks = []
    for _ in range(1 + number(3)):
        width, height = 1 + number(3), 1 + number(3)
        colours = [number(3) for _ in range(width * height)]
        if number(1):
            blocks.append(control(number(3), disposal=number(3)))
        blocks.append(frame(colours, number(4), number(4), width, flags=0x40 * number(1)))
    contents = made_gif(*blocks, width=number(5), height=number(5))
    for expand in (True, False):
        compare(
            lambda expand=expand: tf.io.decode_image(contents, expand_animations=expand),
            lambda expand=expand: decode_image(contents, 0, expand),
        )


@given(
    st.sampled_from([1, 3, 4]),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([16, 40, 56, 66, 108, 124]),
    st.sampled_from([0, 3, 6]),
    st.booleans(),
)
def test_headers_of_a_bmp(
    held: int, width: int, height: int, head: int, packing: int, top_down: bool
) -> None:
    fields = (b"BM", 138, head, width, -height if top_down else height, 1, 8 * held, packing)
    contents = struct.pack("<2s8xIIiiHHI", *fields).ljust(138, b"\x55")
    contents += bytes(range((held * width + 3) // 4 * 4)) * height
    compare(lambda: tf.io.decode_image(contents), lambda: decode_image(contents))


@pytest.mark.parametrize(
    ("kind", "channels", "expand"), pairwise(list(OTHERS), CHANNELS, [True, False])
)
def test_other_formats(kind: str, channels: int, expand: bool) -> None:
    compare(
        lambda: tf.io.decode_image(OTHERS[kind], channels, expand_animations=expand),
        lambda: decode_image(OTHERS[kind], channels, expand),
    )


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if "webp" not in kind])
def test_decode_png_of_other_formats(kind: str) -> None:
    compare(
        lambda: tf.io.decode_png(OTHERS[kind], dtype="uint16"),
        lambda: decode_png(OTHERS[kind], dtype="uint16"),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_each_reads_what_the_other_encodes_as_png(channels: int, dtype: Any) -> None:
    array = noise((13, 17, channels), most=np.iinfo(dtype).max).astype(dtype)
    read = tf.io.decode_png(encode_png(array), dtype=dtype).numpy()
    np.testing.assert_array_equal(read, array)
    encoded = tf.io.encode_png(array).numpy()
    np.testing.assert_array_equal(decode_png(encoded, dtype=dtype), array)


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="zlib-ng compresses in its own way")
@given(
    npst.array_shapes(min_dims=3, max_dims=3, max_side=40).filter(lambda shape: shape[2] < 5),
    st.sampled_from([np.uint8, np.uint16]),
    st.sampled_from([-1, *range(1, 10)]),
    st.integers(0, 255),
    st.integers(0, 1 << 30),
)
@example((200, 300, 3), np.uint8, -1, 9, 0)  # several chunks
@example((1, 1, 2), np.uint16, -1, 0, 0)  # no filter
def test_pngs_are_the_same_bytes(
    shape: tuple[int, ...], dtype: Any, compression: int, most: int, seed: int
) -> None:
    """Of every level but 0, at which zlib's blocks depend on the caller's buffers."""
    steps = np.random.default_rng(seed).integers(0, most + 1, shape)
    array = np.cumsum(steps, axis=seed % 2).astype(dtype)
    assert encode_png(array, compression) == tf.io.encode_png(array, compression).numpy()


@pytest.mark.parametrize("quality", [0, 1, 50, 95, 100])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_are_the_same_bytes(channels: int, quality: int) -> None:
    array = smooth()[..., :channels]
    theirs = tf.io.encode_jpeg(array, quality=quality).numpy()
    assert encode_jpeg(array, quality) == theirs


@pytest.mark.parametrize("size", [(10, 12), (29, 12), (64, 64)])
def test_resizes_as_tensorflow_does_with_antialiasing(size: tuple[int, int]) -> None:
    theirs = tf.image.resize(smooth(), size, antialias=True).numpy()
    ours = np.empty((*size, 3), np.uint8)
    fill_resized(read_picture(saved(smooth(), "PNG"), OutputForm(3)), ours)
    assert np.abs(theirs - ours).max() <= 1.01
