"""TensorFlow's tests of what streamrec offers too."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from tests.outside.result import Result, checkout

__all__ = ["tensorflow_tests"]

KNOWN = {
    r"other dtypes are not offered": "decode_image gives uint8 alone",
    r"the record holds place": "places outside of a SparseFeature's size are refused",
    r"testFlushAndRead.*the object ends": "a compressed shard that has no end yet is refused",
    r"testWrongOp": "there is no decode_bmp and no decode_gif: decode_image stood for them",
    r"testCmyk": "the sampling has no name, so Pillow decodes, by the accurate transform",
    r"encode_png.*image (must be|is) uint8": "encode_png takes one picture, not a batch",
}
"""Why calls differ; docs/reference/formats.md tells it."""


def tensorflow_tests() -> Result:
    """The calls of TensorFlow's tests of parsing, records and pictures."""
    result = Result("calls of TensorFlow's tests", KNOWN)
    root = checkout(result, "STREAMREC_TEST_TENSORFLOW", "tensorflow/python/kernel_tests/io_ops")
    if root is None:
        return result
    if find_spec("tensorflow") is None:
        result.missing = "tensorflow"
        return result
    command = [sys.executable, "-m", "tests.outside.tensorflow_calls", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        result.differing["the tests"] = done.stderr[-400:]
        return result
    counts = json.loads(done.stdout.splitlines()[-1])
    result.agreeing = sum(counts["agreeing"].values())
    result.differing = counts["differing"] | {
        f"test {name}": f"failed: {text}" for name, text in counts["failed"].items()
    }
    return result
