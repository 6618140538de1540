"""Windows of JPEGs, decoded without the rest, by nvImageCodec where it is installed.

It is the CPU decoder that TensorFlow's and DALI's are, over libjpeg-turbo: rows above the window
are read, but not transformed, those below are not read, and columns beside it are left out. The
pixels beside the window still count for the colours at its edges, so that the window is the same,
bit for bit, as one that is cut out of the whole picture.

Source: https://docs.nvidia.com/cuda/nvimagecodec/py_api.html
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.images.picture import optional

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.formats.images.picture import Window

_END = b"\xff\xd9"
"""A JPEG's last marker; a picture without it is truncated, maybe below the window."""
_LEAST_WIDTH = 2
"""A single column at the left edge would not get the colours of its neighbours."""
_OPTIONS = ":fancy_upsampling=1 :fast_idct={:d}"
_OF_THREAD = threading.local()
"""A thread's decoders, each of which serves one thread at a time."""


def decode_region(
    contents: memoryview, window: Window, fast: bool, out: npt.NDArray[np.uint8]
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
    if image is None or image.shape != out.shape:
        return False
    out[...] = image.cpu()
    return True


def _corners(window: Window) -> tuple[int, int, int, int]:
    return window.top, window.left, window.top + window.height, window.left + window.width


def _decoder(codec: Any, fast: bool) -> Any:
    """Return this thread's decoder, which decodes in the thread that calls it."""
    decoders, options = _OF_THREAD.__dict__, _OPTIONS.format(fast)
    if options not in decoders:
        decoders[options] = codec.Decoder(
            device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
            options=options,
        )
    return decoders[options]


def _parameters(codec: Any, channels: int) -> Any:
    space = codec.ColorSpec.GRAY if channels == 1 else codec.ColorSpec.SRGB
    return codec.DecodeParams(apply_exif_orientation=False, color_spec=space)
