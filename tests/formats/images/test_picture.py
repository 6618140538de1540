from __future__ import annotations

import sys
from typing import Any

import pytest

from streamrec.errors import ConfigError, MalformedImage, WrongFeatureType
from streamrec.formats.images.picture import check_channels, check_size, is_fast, library, refusing


def test_what_pillow_raises_is_a_malformed_image() -> None:
    with pytest.raises(MalformedImage, match=r"the PNG cannot be decoded \(odd\): it is corrupt"):
        with refusing("PNG"):
            raise SyntaxError("odd")


@pytest.mark.parametrize("name", ["PIL.Image", "simplejpeg"])
def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=r"which is not installed: pip install 'streamrec\[image\]'"
    ):
        library(name)


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
    with pytest.raises(MalformedImage, match="= 12 pixels, and 11 are allowed"):
        check_size(shape, 11)


def test_channels() -> None:
    check_channels("GIF", 3, (0, 3))
    with pytest.raises(WrongFeatureType, match="this GIF picture gives channels 0 or 3, not 1"):
        check_channels("GIF", 1, (0, 3))
