from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.formats.examples.image_spec import Image


@pytest.mark.parametrize(
    ("arguments", "shape", "channels"),
    [
        ((), None, 3),
        ((None, 0), None, 0),
        (((4, 5),), (4, 5), 3),
        (([4, np.int64(5)], 1), (4, 5), 1),
        (((4, 5, 4),), (4, 5), 4),
    ],
)
def test_normal_form(arguments: Any, shape: Any, channels: int) -> None:
    spec = Image(*arguments)
    assert (spec.shape, spec.channels) == (shape, channels)
    assert Image(spec.shape, spec.channels) == spec


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5,), "a picture's shape must be"),
        (((),), "a picture's shape must be"),
        (((0, 5),), "a picture's shape must be"),
        (((4, 5, 3, 1),), "a picture's shape must be"),
        (((4, -5),), "shape must be"),
        (((4, 5, 2),), "channels must be 0, 1, 3 or 4, not 2"),
        ((None, True), "channels must be 0, 1, 3 or 4, not True"),
        ((None, "3"), "channels must be 0, 1, 3 or 4, not '3'"),
        (((4, 5), 0), "neither a shape nor a size"),
        ((None, 0, (4, 5)), "neither a shape nor a size"),
        ((None, 3, 4), "resize must be"),
        ((None, 3, (4, 5, 3)), "resize must be"),
        ((None, 3, (4, 0)), "resize must be"),
        (((4, 5), 3, (2, 2)), "leave out the shape"),
        ((None, 0, None, "", (0, 0, 4, 5)), "neither a shape nor a size"),
        ((None, 3, None, "", (4, 5)), "crop must be"),
        ((None, 3, None, "", (0, 0, 4, 0)), "crop must be"),
        ((None, 3, None, "", (-1, 0, 4, 5)), "must be"),
        (((4, 5), 3, None, "", (0, 0, 2, 2)), "crop=.* leave out the shape"),
        ((None, 3, None, "FAST"), "dct_method is '' or 'INTEGER_FAST' or"),
    ],
)
def test_wrong_arguments(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Image(*arguments)


def test_the_size_of_decoded_pictures() -> None:
    assert Image().size is None
    assert Image((4, 5)).size == (4, 5)
    assert Image(resize=[6, np.int64(7)]).size == (6, 7)
    assert Image(crop=[1, 2, 6, np.int64(7)]).size == (6, 7)
    assert Image(crop=(9_000, 9_000, 6_000, 7_000), resize=(4, 5)).size == (4, 5)
