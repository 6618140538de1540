"""TensorFlow's own tests, each of whose calls streamrec answers as well.

    python -m tests.outside.tensorflow_calls CHECKOUT

The tests run as they are. Where one calls a function that streamrec offers too, both are given the
same arguments, and the answers are compared: the same values, or both refuse. The counts are
printed as JSON.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import unittest
from collections import Counter
from functools import wraps
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import streamrec as sr
from streamrec.errors import ConfigError, StreamrecError
from tests.formats.beside_tensorflow import assert_equal, tf
from tests.outside.result import tried

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = [
    "kernel_tests/io_ops/parsing_ops_test.py",
    "kernel_tests/io_ops/parse_single_example_op_test.py",
    "kernel_tests/image_ops/decode_bmp_op_test.py",
    "kernel_tests/image_ops/decode_image_op_test.py",
    "kernel_tests/image_ops/decode_jpeg_op_test.py",
    "kernel_tests/image_ops/decode_png_op_test.py",
    "kernel_tests/image_ops/decode_raw_op_test.py",
    "kernel_tests/io_ops/reader_ops_test.py",
    "lib/io/tf_record_test.py",
    "ops/image_ops_test.py",
]
IMAGES = "DecodeImage|Jpeg|JPEG|Png|PNG|Gif|GIF|Webp|WebP|Bmp|BMP"
"""The classes of image_ops_test that have to do with files of pictures."""


DATA = ("serialized", "input_bytes", "bytes", "contents", "image", "crop_window")
"""The arguments that are data."""


class NotGiven(Exception):
    """A call has an argument that only a session of TensorFlow knows."""


class Calls:
    """The calls that were compared."""

    def __init__(self) -> None:
        self.agreeing: Counter[str] = Counter()
        self.differing: dict[str, str] = {}
        self.left_out = 0
        """Calls with placeholders."""
        self.test = ""
        self._is_inside = False

    def compared(self, name: str, original: Any, ours: Callable[..., Any]) -> Any:
        """Return a function that calls the original, after both were compared."""
        signature = inspect.signature(original)

        @wraps(original)
        def call(*given: Any, **options: Any) -> Any:
            if not self._is_inside:
                self._is_inside = True
                try:
                    bound = signature.bind(*given, **options)
                    self._compare(name, original, ours, dict(bound.arguments))
                except (NotGiven, TypeError):
                    self.left_out += 1
                finally:
                    self._is_inside = False
            return original(*given, **options)

        return call

    def _compare(self, name: str, original: Any, ours: Any, arguments: dict[str, Any]) -> None:
        from tensorflow.python.eager import context

        plain = {
            key: _plain(value) if key in DATA else value
            for key, value in arguments.items()
            if key not in ("example_names", "example_name")  # for errors alone
        }
        with context.eager_mode():
            theirs = tried(original, **plain)
            found = tried(ours, **plain)
            self.note(name, _difference(found, theirs))

    def note(self, name: str, what: str) -> None:
        """Count a call; what is wrong is empty where nothing is."""
        if what:
            self.differing[f"{self.test} {name} {len(self.differing)}"] = what[:300]
        else:
            self.agreeing[name] += 1


def _plain(value: Any) -> Any:
    """Return an argument as a program would give it without TensorFlow's graphs."""
    if isinstance(value, tf.Tensor):
        from tensorflow.python.framework import tensor_util

        known = value.numpy() if hasattr(value, "numpy") else tensor_util.constant_value(value)
        if known is None:
            raise NotGiven
        value = known
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        value = value.tolist()
    if isinstance(value, str):  # TensorFlow takes the texts that tests have for serialized messages
        return value.encode()
    return [_plain(one) for one in value] if type(value) is list else value


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, Exception) and not isinstance(ours, StreamrecError):
        return f"raises {ours!r}"
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        if isinstance(ours, Exception) and isinstance(theirs, Exception):
            return ""
        shown = str(ours if isinstance(ours, Exception) else theirs)
        return f"{'refused' if isinstance(ours, Exception) else 'taken, refused there'}: {shown}"
    found = tried(_check, ours, theirs)
    return f"{found!r}" if found is not None else ""


def _check(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            _check(ours[name], value)
    elif isinstance(theirs, tuple) and not isinstance(theirs, tf.SparseTensor):
        for one, other in zip(ours, theirs, strict=True):
            _check(one, other)
    else:
        assert_equal(ours, theirs)


# -- what answers --------------------------------------------------------------------------------


def _parse(function: Any, *names: str) -> Any:
    """Answer by a parser, which knows no names of examples."""

    def answer(serialized: Any, **options: Any) -> Any:
        return function(serialized, **{name: options.get(name) for name in names})

    return answer


def _decoded(function: Any, *names: str) -> Any:
    def answer(contents: Any, name: Any = None, **options: Any) -> Any:
        return function(contents, **{key: options[key] for key in names if key in options})

    return answer


def _raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: Any = True,
    fixed_length: Any = None,
    **more: Any,
) -> Any:
    data = more.get("bytes", input_bytes)  # the older name
    return sr.decode_raw(data, out_type, None, little_endian, fixed_length)


def _sequences(serialized: Any, context_features: Any = None, sequence_features: Any = None,
               **_: Any) -> Any:  # fmt: skip
    return sr.parse_sequence_example(serialized, context_features, sequence_features)


def _image(contents: Any, channels: Any = None, dtype: Any = "uint8",
           expand_animations: Any = True, **_: Any) -> Any:  # fmt: skip
    if tf.as_dtype(dtype) != tf.uint8:
        raise ConfigError("other dtypes are not offered")
    return sr.decode_image(contents, channels or 0, expand_animations)


PARSERS: dict[str, Any] = {
    "parse_example": _parse(sr.parse_example, "features"),
    "parse_single_example": _parse(sr.parse_single_example, "features"),
    "parse_sequence_example": _sequences,
    "parse_single_sequence_example": _parse(
        sr.parse_single_sequence_example, "context_features", "sequence_features"
    ),
    "parse_tensor": lambda serialized, out_type, name=None: sr.parse_tensor(serialized, out_type),
    "decode_raw": _raw,
}
DECODERS: dict[str, Any] = {
    "decode_image": _image,
    "decode_jpeg": _decoded(sr.decode_jpeg, "channels", "dct_method"),
    "decode_png": _decoded(sr.decode_png, "channels", "dtype"),
    "decode_and_crop_jpeg": lambda contents, crop_window, **more: _decoded(
        lambda data, **rest: sr.decode_and_crop_jpeg(data, crop_window, **rest),
        "channels", "dct_method",
    )(contents, **more),
    "decode_bmp": _decoded(sr.decode_image, "channels"),
    "decode_gif": _decoded(sr.decode_image),
    "decode_webp": _decoded(sr.decode_image, "channels"),
    "encode_png": lambda image, compression=-1, name=None: sr.encode_png(image, compression),
}  # fmt: skip


def patch(calls: Calls) -> None:
    """Have the calls of TensorFlow's modules compared."""
    for place, answers in (("parsing_ops", PARSERS), ("image_ops", DECODERS)):
        module = import_module(f"tensorflow.python.ops.{place}")
        for name, ours in answers.items():
            if hasattr(module, name):
                setattr(module, name, calls.compared(name, getattr(module, name), ours))
    _patch_records(calls)


def _patch_records(calls: Calls) -> None:
    """Compare what is written and read as TFRecord."""
    from tensorflow.python.lib.io import python_io, tf_record

    iterate = tf_record.tf_record_iterator

    def records_of(path: str, options: Any = None) -> Any:
        ours = tried(lambda: list(sr.read_records(path, compression=_compression(options))))
        theirs = tried(lambda: list(iterate(path, options)))
        if isinstance(ours, Exception) or isinstance(theirs, Exception):
            calls.note("tf_record_iterator", _difference(ours, theirs))
        else:
            calls.note("tf_record_iterator", "" if ours == theirs else "other records")
        return iterate(path, options)

    tf_record.tf_record_iterator = python_io.tf_record_iterator = records_of
    _patch_writer(calls, tf_record.TFRecordWriter, iterate)


def _patch_writer(calls: Calls, writer: Any, iterate: Any) -> None:
    """Have streamrec read what a writer wrote, and TensorFlow read the same by streamrec."""
    begin, write, close = writer.__init__, writer.write, writer.close

    def __init__(self: Any, path: Any, options: Any = None) -> None:  # noqa: N807 - it is put there
        begin(self, path, options)
        self.place, self.how, self.written = path, options, []

    def write_too(self: Any, record: Any) -> None:
        write(self, record)
        self.written.append(record)

    def close_too(self: Any, *_: object) -> None:
        close(self)
        if self.written is not None:
            calls.note("TFRecordWriter", _written(self, iterate))
            self.written = None

    writer.__init__, writer.write, writer.close = __init__, write_too, close_too
    writer.__exit__ = close_too


def _compression(options: Any) -> str | None:
    from tensorflow.python.lib.io import tf_record

    return tf_record.TFRecordOptions.get_compression_type_string(options).lower() or None


def _written(writer: Any, iterate: Any) -> str:
    compression = _compression(writer.how)
    found = tried(lambda: list(sr.read_records(writer.place, compression=compression)))
    if found != writer.written:
        return f"read as {found!r}"
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory, "x"))
        with sr.TFRecordWriter(path, compression) as ours:
            ours.write_many(writer.written)
        found = list(iterate(path, writer.how))
    return "" if found == writer.written else f"TensorFlow reads {found!r}"


class _Noting(unittest.TextTestResult):
    """A result that tells the calls which test makes them."""

    calls: Calls

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Note the test's name."""
        self.calls.test = test.id().partition(".")[2]
        super().startTest(test)


def main(root: Path) -> None:
    """Run the tests of a checkout, and print the counts."""
    import re

    from absl import flags

    flags.FLAGS(["tests"])
    _Noting.calls = calls = Calls()
    patch(calls)
    suite = unittest.TestSuite()
    os.chdir(root)  # where the pictures are
    for number, name in enumerate(TESTS):
        spec = spec_from_file_location(f"suite{number}", root / "tensorflow/python" / name)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        for case in unittest.defaultTestLoader.loadTestsFromModule(module):
            tests: Any = case
            for test in tests:
                if not name.endswith("image_ops_test.py") or re.search(IMAGES, test.id()):
                    suite.addTest(test)
    with Path(os.devnull).open("w") as quiet:
        results: Any = _Noting
        found = unittest.TextTestRunner(quiet, resultclass=results).run(suite)
    failed = {test.id(): text[-600:] for test, text in found.failures + found.errors}
    counts = {
        "tests": found.testsRun,
        "failed": failed,
        "left_out": calls.left_out,
        "agreeing": calls.agreeing,
        "differing": calls.differing,
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
