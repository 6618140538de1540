"""Test images of others, decoded as TensorFlow decodes them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import StreamrecError
from streamrec.formats.images.image import decode_image
from tests.outside.debian import debian_source
from tests.outside.result import Result, checkout, tried

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["compare", "pictures", "pictures_of_tensorflow"]

PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".apng", ".webp")
_BY_PILLOW = "damaged, or its sampling has no name, so Pillow decodes, by the accurate transform"
_LONGER = "more bytes than the pixels take, which TensorFlow refuses"
_PASSED_OVER = "no palette, or bytes between blocks, where TensorFlow refuses or ends"
# docs/reference/formats.md tells each reason.
KNOWN = {
    r"accurate transform": _BY_PILLOW,
    r"8a4c8100dedd": "damaged and without its end: the first of two faults alone is told",
    r"3g_multiframe\.gif.*raise max_pixels": "its frames have more pixels than are allowed",
    r"(mmap_error|pal8_offset|rgb24l?prof)\.bmp": _LONGER,
    r"(hopper_zero_comment_subblocks|issue_2811|test_extents_transparency)\.gif": _PASSED_OVER,
    r"no_palette(_after_rgb)?\.gif": _PASSED_OVER,
}


def pictures() -> Result:
    """Pillow's test images."""
    result = Result("Pillow's test images beside TensorFlow", KNOWN)
    named = checkout(result, "STREAMREC_TEST_PILLOW", "Tests/images")
    result.missing = ""
    with nullcontext(named) if named else debian_source("pillow") as source:
        if source is None:
            result.missing = "Debian's source of pillow"
            return result
        return _decoded(result, source.rglob("Tests/images/**/*"))


def pictures_of_tensorflow() -> Result:
    """TensorFlow's test images, and what its fuzzing of decoders has found."""
    result = Result("TensorFlow's test images beside TensorFlow", KNOWN)
    source = checkout(result, "STREAMREC_TEST_TENSORFLOW", "tensorflow/core/lib/jpeg/testdata")
    if source is None:
        return result
    return _decoded(result, source.glob("tensorflow/core/**/*"), more=("corpus/decode_",))


def _decoded(result: Result, paths: Iterable[Path], more: tuple[str, ...] = ()) -> Result:
    """Decode each picture, and what lies in folders with other names."""
    try:
        import tensorflow as tf
    except ImportError:
        result.missing = "tensorflow"
        return result
    for path in sorted(paths):
        is_picture = path.suffix.lower() in PICTURES or any(part in str(path) for part in more)
        if is_picture and path.is_file():
            contents = path.read_bytes()
            theirs = tried(lambda data: tf.io.decode_image(data).numpy(), contents)
            ours = tried(decode_image, contents)
            compare(result, path.name, ours, theirs)
            if path.name in result.differing and np.array_equal(ours, _accurate(tf, contents)):
                result.differing[path.name] += ", and is that of the accurate transform"
    return result


def _accurate(tf: Any, contents: bytes) -> Any:
    found = tried(tf.io.decode_jpeg, contents, dct_method="INTEGER_ACCURATE")
    return None if isinstance(found, Exception) else found.numpy()


def compare(result: Result, case: str, ours: Any, theirs: Any) -> None:
    """Count a case: the same array, or both refuse."""
    refused = [isinstance(one, Exception) for one in (ours, theirs)]
    if refused[0] and not isinstance(ours, StreamrecError):
        result.differing[case] = f"raises {ours!r}"
    elif refused == [True, True] or (not any(refused) and np.array_equal(ours, theirs)):
        result.agreeing += 1
    elif refused[0]:
        result.differing[case] = f"refused: {ours}"[:200]
    elif refused[1]:
        result.differing[case] = f"decoded, but TensorFlow says {theirs}"[:200]
    elif ours.shape != theirs.shape:
        result.differing[case] = f"has the shape {ours.shape}, not {theirs.shape}"
    else:
        most = np.abs(ours.astype(int) - theirs.astype(int)).max()
        result.differing[case] = f"differs by {most} at most"
