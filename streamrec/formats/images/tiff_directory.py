"""The first directory of a TIFF, checked before Pillow copies all that it lists.

Source: TIFF 6.0, section 2; BigTIFF: www.awaresystems.be/imaging/tiff/bigtiff.html.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_SIZES |= {16: 8, 17: 8, 18: 8}
"""Bytes of a value, by its type."""
_SIDES, _TILES = (257, 256), (323, 322)
"""The tags of the height and width of the picture, and of its tiles."""
_PLACES = (273, 324)
"""The tags of the offsets of strips and of tiles."""
_MOST_PARTS = 1 << 16
"""The most strips or tiles: Pillow takes some hundred bytes for each."""


def check_tiff(contents: memoryview, max_pixels: int) -> None:
    """Refuse a TIFF whose directory makes more of its bytes than there are.

    Entries may share their bytes, and each is copied: a directory of 65,536 entries makes so many
    copies of the file. A tile may be larger than the picture.

    Args:
        contents: The encoded picture.
        max_pixels: The most pixels of the picture, or of one of its tiles.

    Raises:
        MalformedImage: It does.
        PictureTooLarge: The picture or its tiles claim more pixels.
    """
    listed = 0
    sides: dict[int, int] = {}
    try:
        for tag, kind, count, value in _entries(contents):
            listed += count * _SIZES.get(kind, 1)
            if tag in _PLACES and count > _MOST_PARTS:
                raise MalformedImage(
                    f"the TIFF has {count:,} strips or tiles, but {_MOST_PARTS:,} are allowed; "
                    "write it with larger ones"
                )
            if tag in _SIDES + _TILES and count == 1 and kind in _SIZES:
                sides[tag] = value
    except struct.error:
        return  # it ends too early, which Pillow says
    if listed > len(contents):
        raise MalformedImage(
            f"the TIFF's directory lists {listed:,} bytes of values, but the file has "
            f"{len(contents):,}: it is corrupt; replace it"
        )
    for height, width in (_SIDES, _TILES):
        check_size((sides.get(height, 1), sides.get(width, 1), 1), max_pixels)


def _entries(contents: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag, the type, the number of values, and the value, if there is one, of each entry.

    Raises:
        struct.error: The bytes end before the directory does.
    """
    head = bytes(contents[:4])
    order = "<" if head.startswith(b"I") else ">"
    is_big = b"+" in head
    offset, number, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    (at,) = struct.unpack_from(order + offset, contents, 8 if is_big else 4)
    (entries,) = struct.unpack_from(order + number, contents, at)
    at += struct.calcsize(order + number)
    size = struct.calcsize(order + entry)
    for _ in range(entries):
        tag, kind, count, value = struct.unpack_from(order + entry, contents, at)
        width = _SIZES.get(kind, 1)
        number_bytes = value[:width]
        little = "little" if order == "<" else "big"
        yield tag, kind, count, int.from_bytes(number_bytes, little)  # type: ignore[arg-type]
        at += size
