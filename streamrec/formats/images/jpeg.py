"""JPEG, decoded by libjpeg-turbo to the numbers that TensorFlow gives.

Windows are decoded without the rest by nvImageCodec, where it is installed. It is the CPU decoder
that TensorFlow's and DALI's are, over libjpeg-turbo: rows above the window are read, but not
transformed, those below are not read, and columns beside it are left out. The pixels beside the
window still count for the colours at its edges, so that the window is the same, bit for bit, as one
that is cut out of the whole picture. Source: https://docs.nvidia.com/cuda/nvimagecodec/py_api.html
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage, PictureTooLarge, UnsupportedFormat
from streamrec.formats.images.picture import (
    CropWindow,
    OutputForm,
    Picture,
    bands,
    check_channels,
    check_size,
    is_fast,
    library,
    open_picture,
    optional,
    refusing,
    turbo,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


_END = b"\xff\xd9"
"""A JPEG's last marker; a picture without it is truncated, maybe below the window."""
_LEAST_WIDTH = 2
"""A single column at the left edge would not get the colours of its neighbours."""
_OPTIONS = ":fancy_upsampling=1 :fast_idct={:d}"
_OF_THREAD = threading.local()
"""A thread's decoders, each of which serves one thread at a time."""


def decode_region(
    contents: memoryview, window: CropWindow, fast: bool, out: npt.NDArray[np.uint8]
) -> bool:
    """Decode a window of a JPEG alone.

    Args:
        contents: The encoded picture, of one or three channels.
        window: The window, inside of the picture.
        fast: The inverse transform is libjpeg's fast one.
        out: uint8 ``[height, width, channels]``, of 1 (gray) or 3 (RGB) channels.

    Returns:
        False where it cannot be done, and the whole picture is to be decoded: without the library,
        of a window of one column, and where the picture may be damaged.
    """
    codec = optional("nvidia.nvimgcodec")
    if codec is None or window.width < _LEAST_WIDTH or contents[-len(_END) :] != _END:
        return False
    stream = codec.CodeStream(np.frombuffer(contents, np.uint8))
    part = stream.get_sub_code_stream(region=codec.Region(*_corners(window)))
    image = _decoder(codec, fast).decode(part, params=_parameters(codec, out.shape[2]))
    # It gives None for what it cannot decode; decoding the whole then says why.
    if image is None or image.shape != out.shape:
        return False
    out[...] = image.cpu()
    return True


def _corners(window: CropWindow) -> tuple[int, int, int, int]:
    return window.top, window.left, window.top + window.height, window.left + window.width


def _decoder(codec: Any, fast: bool) -> Any:
    """Return this thread's decoder, which decodes in the thread that calls it."""
    decoders, options = _OF_THREAD.__dict__, _OPTIONS.format(fast)
    if options not in decoders:
        decoders[options] = codec.Decoder(
            device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
            # The caller has threads of its own, each with a picture.
            max_num_cpu_threads=1,
            backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
            options=options,
        )
    return decoders[options]


def _parameters(codec: Any, channels: int) -> Any:
    space = codec.ColorSpec.GRAY if channels == 1 else codec.ColorSpec.SRGB
    # TensorFlow does not turn pictures by their EXIF data.
    return codec.DecodeParams(apply_exif_orientation=False, color_spec=space)


_NO_END = "Premature end of JPEG file"
_BETWEEN = "extraneous bytes before marker 0x"
_BEHIND = f"{_BETWEEN}d9"
"""libjpeg's first warnings of pictures that TensorFlow refuses, of those with something between
segments, and of those whose pixels are whole: it stands between them and the end."""
_PILLOWS = {1: "L", 3: "RGB", 4: "CMYK"}
"""Pillow's modes, by the number of channels."""
_SPACES = {"L": "Gray", "RGB": "YCbCr", "CMYK": "CMYK"}
"""simplejpeg's names of what a JPEG stores, by Pillow's mode."""
_NOT_NAMED = (ValueError, KeyError)
"""What simplejpeg raises of samplings for which TurboJPEG, or itself, has no name."""
_ALONE = {0x00, 0x01, *range(0xD0, 0xD9), 0xFF}
"""Markers without a length, and bytes after 0xFF that make no marker. Source: ITU-T T.81, B.1."""
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""The markers that begin a frame."""
_READ = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}
"""The frames that libjpeg-turbo decodes: sequential and progressive, neither lossless nor
hierarchical."""
_PROGRESSIVE = {0xC2, 0xCA}
_SCAN = b"\xff\xda"
"""The marker that begins a scan. Entropy-coded data hold none: a 0 follows each of their 0xFF."""
_HEAD = 4 << 10
"""Bytes in which the first scan begins, where no profile and no thumbnail stands before it."""
MOST_SCANS = 100
"""The most scans of a picture. A scan of a few bytes costs a pass over all blocks of the picture,
so that libjpeg-turbo advises programs to set a limit, and itself fails beyond 500 if it is told
to. Encoders write 10 or so. Source: libjpeg-turbo.org/pmwiki/uploads/About/
TwoIssueswiththeJPEGStandard.pdf; turbojpeg.h, TJFLAG_LIMITSCANS."""
_PASSES = 32
"""Times ``max_pixels`` that all scans of a picture may go over pixels."""
_ONE_BY_ONE = threading.Lock()
"""Held while Pillow decodes a damaged picture, whose memory its header did not tell."""


def read(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read a JPEG's header. CMYK is given as RGB, without a colour profile.

    Raises:
        MalformedImage: The bytes are not a JPEG that can be decoded, or it has more pixels.
        UnsupportedFormat: It is one of a kind that libjpeg-turbo does not decode.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: simplejpeg is not installed.
    """
    with _refusing(contents):
        size, stored_as, is_named, work = _header(contents, wanted)
    inks = stored_as in ("CMYK", "YCCK")
    allowed = (0, 3) if inks else (0, 1, 3)
    check_channels("CMYK JPEG" if inks else "JPEG", wanted.channels, allowed)
    channels = wanted.channels or (1 if stored_as == "Gray" else 3)

    def fill(out: npt.NDArray[Any]) -> None:
        if inks:
            _mix(contents, wanted, out)
        else:
            _decode(contents, "Gray" if channels == 1 else "RGB", wanted, out)

    def fill_part(window: CropWindow, out: npt.NDArray[Any]) -> bool:
        fast = is_fast(wanted.dct_method)
        return is_named and not inks and decode_region(contents, window, fast, out)

    # Inks are decoded whole before they are mixed, and what TurboJPEG cannot name by Pillow.
    work += 4 * size[0] * size[1] * (inks + (not is_named))
    return Picture((*size, channels), fill, fill_part=fill_part, work=work)


def _header(contents: memoryview, wanted: OutputForm) -> tuple[tuple[int, int], str, bool, int]:
    """Return ``(height, width)``, the colours, whether TurboJPEG can name the sampling, and work.

    The work is what :class:`Picture` says of it.
    """
    header = partial(turbo().decode_jpeg_header, contents, strict=False)
    height, width, stored_as = -1, -1, ""
    with suppress(*_NOT_NAMED):
        height, width, stored_as, _ = header()
    # Of a damaged header the fork of simplejpeg gives sizes below 0, in place of an error.
    if min(height, width) < 1:
        image = open_picture("JPEG", contents)
        check_size((image.height, image.width, 3), wanted.max_pixels)
        _check_supported(contents)
        work = _check_scans(contents, image.height * image.width, wanted.max_pixels)
        return (image.height, image.width), _SPACES[image.mode], False, work
    check_size((height, width, 3), wanted.max_pixels)
    work = _check_scans(contents, height * width, wanted.max_pixels)
    if any(wanted.least):
        # Only by halves: other fractions take longer than the whole.
        height, width, _, _ = header(*wanted.least, 2)
    return (height, width), stored_as, True, work


def has_end(contents: memoryview) -> bool:
    """Return whether a JPEG has the mark of its end; without it, the picture was cut off."""
    # A thumbnail before the first scan may have one, too; entropy-coded data have none.
    return bytes(contents).find(_END, _layout(contents).at) > 0


def _check_scans(contents: memoryview, pixels: int, most: int) -> int:
    """Refuse a picture of too many scans; return the bytes of the coefficients that they share.

    Raises:
        PictureTooLarge: It has more scans than are allowed, or they go over too many pixels.
    """
    layout = _layout(contents)
    if layout.is_one_scan:
        return 0
    scans = bytes(contents[layout.at :]).count(_SCAN)
    allowed = min(MOST_SCANS, max(1, _PASSES * most // max(1, pixels)))
    if scans > allowed:
        raise PictureTooLarge(
            f"the JPEG has {scans} scans of {pixels:,} pixels, but {allowed} are allowed, since "
            "each costs a pass over all of them; write it anew with fewer, if you trust it"
        )
    return layout.coefficients


@contextmanager
def _refusing(contents: memoryview) -> Iterator[None]:
    """Refuse a corrupt picture, and as :class:`UnsupportedFormat` one that is not decoded."""
    try:
        with refusing("JPEG"):
            yield
    except MalformedImage:
        _check_supported(contents)
        raise


def _check_supported(contents: memoryview) -> None:
    """Refuse a JPEG whose frame says that libjpeg-turbo does not decode it."""
    kind, frame, *_ = _layout(contents)
    # Six bytes, and three for each channel (ITU-T T.81, B.2.2); another one is corrupt.
    if len(frame) < 6 or len(frame) != 6 + 3 * frame[5]:
        return
    height = int.from_bytes(frame[1:3], "big")
    if kind not in _READ:
        why = "is lossless" if kind in (0xC3, 0xCB) else "is hierarchical or lossless"
    elif frame[0] != 8:
        why = f"has {frame[0]} bits a channel"
    elif frame[5] not in (1, 3, 4):
        why = f"has {frame[5]} channels"
    # A segment after the first scan would say it (ITU-T T.81, B.2.5).
    elif not height:
        why = "has its height only after its pixels"
    else:
        return
    raise UnsupportedFormat(
        f"the JPEG {why}, which is not supported; write it as a baseline or progressive JPEG of 8 "
        "bits a channel, or as PNG"
    ) from None


class _JPEGLayout(NamedTuple):
    """The segments of a JPEG that say how its pixels are stored."""

    kind: int = 0
    """The marker of the first frame; 0: there is none."""
    frame: bytes = b""
    """The content of its segment."""
    together: int = 0
    """The number of channels that the first scan holds; 0: there is none."""
    at: int = 0
    """The byte at which that scan begins."""

    @property
    def is_one_scan(self) -> bool:
        """True if a single scan holds all pixels, so that they are decoded as they come."""
        count = self.frame[5] if len(self.frame) > 5 else 0
        return self.kind not in _PROGRESSIVE and self.together == count

    @property
    def coefficients(self) -> int:
        """Bytes of the coefficients, which are kept until the last scan: two for each number."""
        height, width = (int.from_bytes(self.frame[at : at + 2], "big") for at in (1, 3))
        # A channel's two sampling factors share a byte; a corrupt 0 must not divide.
        sides = [(octet >> 4 or 1, octet & 15 or 1) for octet in self.frame[7::3]]
        across = max((one[0] for one in sides), default=1)
        down = max((one[1] for one in sides), default=1)
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        return 128 * units * sum(one[0] * one[1] for one in sides)


def _layout(contents: memoryview) -> _JPEGLayout:
    """Read the segments up to the first scan."""
    # Mostly this is enough, and the whole picture need not be copied.
    found = _segments(bytes(contents[:_HEAD]))
    return found if found.together else _segments(bytes(contents))


def _segments(octets: bytes) -> _JPEGLayout:
    """Read the segments that say how pixels are stored."""
    kind, frame = 0, b""
    for at, end in _bounds(octets):
        marker = octets[at + 1]
        if marker in _FRAMES and not kind:
            kind, frame = marker, octets[at + 4 : end]
        elif marker == _SCAN[1]:
            return _JPEGLayout(kind, frame, octets[at + 4], at)
    return _JPEGLayout(kind, frame)


def _bounds(octets: bytes) -> Iterator[tuple[int, int]]:
    """Yield where segments begin and end, up to that of the first scan.

    What stands between them is passed over, as libjpeg does.
    """
    # Behind the two bytes that begin every picture.
    at = octets.find(b"\xff", 2)
    while 0 <= at < len(octets) - 4:
        # Computed here: a call for each segment of each picture is noticed.
        marker, size = octets[at + 1], octets[at + 2] << 8 | octets[at + 3]
        if marker in _ALONE:
            at = octets.find(b"\xff", at + 1)
            continue
        yield at, at + 2 + size
        if marker == _SCAN[1]:
            return
        at = octets.find(b"\xff", at + 2 + size)


def _tidy(octets: bytes) -> bytes:
    """Return a JPEG without what stands between its segments."""
    bounds = list(_bounds(octets))
    if not bounds:
        return octets
    rest = octets[bounds[-1][0] :]
    return b"".join([octets[:2], *(octets[at:end] for at, end in bounds[:-1]), rest])


def _decode(contents: memoryview, space: str, wanted: OutputForm, out: npt.NDArray[Any]) -> None:
    with _refusing(contents):
        damage = _decode_by_turbo(contents, space, wanted, out)
        # The first warning ends the decoding: without this harmless one, real damage after it
        # shows.
        if _BETWEEN in damage:
            damage = _decode_by_turbo(_tidy(bytes(contents)), space, wanted, out)
        if damage:
            _decode_by_pillow(contents, out)


def _decode_by_turbo(
    contents: memoryview | bytes, space: str, wanted: OutputForm, out: npt.NDArray[Any]
) -> str:
    """Decode, and return the first warning, after which pixels may be missing.

    Raises:
        ValueError: The picture has no end.
    """
    decode = turbo().decode_jpeg
    try:
        decode(contents, space, is_fast(wanted.dct_method), False, *wanted.least, 2, out)
    except _NOT_NAMED as damage:
        if _NO_END in str(damage):
            raise
        return "" if str(damage).endswith(_BEHIND) else str(damage) or "no name"
    return ""


def _decode_by_pillow(contents: memoryview, out: npt.NDArray[Any]) -> None:
    """Decode as far as it goes, as TensorFlow does; by Pillow, with the accurate transform.

    After damage TurboJPEG does not tell its warnings from errors, after which pixels are missing.
    Of a sampling that it cannot name it decodes nothing.
    """
    mode, size = _PILLOWS[out.shape[2]], open_picture("JPEG", contents).size
    with _ONE_BY_ONE:
        # By the codec alone: a program may have told Pillow to load truncated pictures.
        image = library().frombytes(mode, size, contents, "jpeg", mode, "", 1, 0)
        # A fraction of the picture was wanted, which the plain codec does not give.
        if size != out.shape[1::-1]:
            image = image.resize(out.shape[1::-1])
        for rows, part in bands(image):
            out[rows] = np.asarray(part).reshape(out[rows].shape)


def _mix(contents: memoryview, wanted: OutputForm, out: npt.NDArray[Any]) -> None:
    """Decode inks, and mix them to colours."""
    stored = np.empty((*out.shape[:2], 4), np.uint8)
    _decode(contents, "CMYK", wanted, stored)
    # Adobe's marker says that CMYK is stored inverted; a shorter one is none to libjpeg.
    inverted = "adobe_transform" in open_picture("JPEG", contents).info
    for inks, colours in zip(stored, out, strict=True):  # by rows, which are soon forgotten
        bright = (inks if inverted else 255 - inks).astype(np.uint16)
        colours[...] = bright[..., :3] * bright[..., 3:] // 255
