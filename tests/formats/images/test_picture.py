from __future__ import annotations

import sys

import pytest

from streamrec.errors import ConfigError, MalformedImage, WrongFeatureType
from streamrec.formats.images.picture import check_channels, check_size, library, opened, refusing


def test_what_pillow_raises_is_a_malformed_image() -> None:
    with pytest.raises(MalformedImage, match=r"the PNG cannot be decoded \(odd\): it is corrupt"):
        with refusing("PNG"):
            raise SyntaxError("odd")


def test_pillow_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for call in (library, lambda: opened("BMP", memoryview(b"BM"))):
        with pytest.raises(ConfigError, match=r"pip install 'streamrec\[image\]'"):
            call()


@pytest.mark.parametrize("shape", [(3, 4, 3), (12, 1, 1), (2, 2, 3, 4)])
def test_a_limit_of_pixels(shape: tuple[int, ...]) -> None:
    check_size(shape, 12)
    with pytest.raises(MalformedImage, match="= 12 pixels, and 11 are allowed"):
        check_size(shape, 11)


def test_channels() -> None:
    check_channels("GIF", 3, (0, 3))
    with pytest.raises(WrongFeatureType, match="this GIF picture gives channels 0 or 3, not 1"):
        check_channels("GIF", 1, (0, 3))
