"""Folders of pictures, one for each class."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from streamrec.errors import ConfigError, DataError, StoreError
from streamrec.masking import masked
from streamrec.sources.source import PIECE_BYTES, Block, Option, SourceKind, files_digest
from streamrec.sources.table import FEATURES, FeatureChoice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.stores.stored_files import StoredFile

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
TYPES = {
    "image/encoded": "bytes",
    "image/format": "bytes",
    "image/height": "int64",
    "image/width": "int64",
    "image/channels": "int64",
    "image/filename": "bytes",
    "image/class/label": "int64",
    "image/class/text": "bytes",
}
"""The features' names and types, as TensorFlow's own conversion of ImageNet has them."""
MOST_FILES = 256
"""Files in one piece."""


class PictureForm(NamedTuple):
    """The form in which pictures are stored: as they are, unless it says otherwise."""

    encode: Literal["jpeg", "png"] | None = None
    quality: int = 95
    """A JPEG's quality, from 0 to 100."""
    size: tuple[int, int] | None = None
    """The ``(height, width)`` to resize to."""


class _File(NamedTuple):
    name: str
    """The path below the root, with slashes."""
    label: int
    stored: StoredFile


@dataclass(frozen=True)
class PictureFolder:
    """A directory with one directory of pictures for each class.

    The classes are numbered from 0, in the order of their names. Pictures are named below the root,
    which determines their split.
    """

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "bytes"
    root: str
    features: dict[str, str]
    labels: dict[str, int]
    form: PictureForm
    files: list[_File]

    @classmethod
    def find(
        cls,
        root: str,
        features: Mapping[str, str | None] | None,
        form: PictureForm,
        storage_options: Mapping[str, Any],
    ) -> Self:
        """List the pictures.

        Raises:
            ConfigError: There are no pictures, or no such features.
        """
        from streamrec.stores.stored_files import files_below

        pictures = {
            name: file
            for name, file in files_below(root, storage_options).items()
            # Pictures at the root itself have no class.
            if "/" in name and name.lower().endswith(SUFFIXES)
        }
        if not pictures:
            raise ConfigError(
                f"{masked(root)}: its directories hold no pictures; give a directory that holds "
                "one directory for each class, or for other files the --kind, as in --kind bert"
            )
        for name, dtype in (features or {}).items():
            if dtype is not None and dtype != TYPES.get(name, dtype):
                raise ConfigError(f"--features: {name} is of type {TYPES[name]}; leave out {dtype}")
        # Sorted, so that each task and each run numbers the classes alike.
        names = sorted({name.partition("/")[0] for name in pictures})
        labels = {name: number for number, name in enumerate(names)}
        files = [
            _File(name, labels[name.partition("/")[0]], file) for name, file in pictures.items()
        ]
        return cls(
            root=root,
            features=FeatureChoice(features).choose(TYPES, "a picture"),
            labels=labels,
            form=form,
            files=files,
        )

    @property
    def total(self) -> int:
        """The bytes of all files."""
        return sum(file.stored.size for file in self.files)

    @property
    def identity(self) -> Any:
        """The name and version of the pictures."""
        return {
            "pictures": masked(self.root).rstrip("/").rpartition("/")[2],
            "digest": files_digest((file.name, file.stored) for file in self.files),
            "features": list(self.features),
            "form": [self.form.encode, self.form.quality, self.form.size],
        }

    def pieces(self) -> Iterator[list[_File]]:
        """Yield lists of files, class by class."""
        piece: list[_File] = []
        size = 0
        for file in self.files:
            if piece and (len(piece) == MOST_FILES or size + file.stored.size > PIECE_BYTES):
                yield piece
                piece, size = [], 0
            piece.append(file)
            size += file.stored.size
        yield piece

    def read(self, piece: list[_File], refuse: Refuse) -> Block:
        """Read pictures, and encode them again where the form says so."""
        from streamrec.formats.examples.encode import encode_examples
        from streamrec.stores.stored_files import file_contents
        from streamrec.values.columns import BytesColumn

        files, rows = [], []
        contents = file_contents([file.stored for file in piece])
        for file, content in zip(piece, contents, strict=True):
            try:
                rows.append(self._row(file, content))
            except (OSError, DataError, StoreError) as error:
                refuse(self._refusal(file, error))
            else:
                files.append(file)
        columns = {name: [row[name] for row in rows] for name in self.features}
        records = encode_examples(columns) if rows else BytesColumn.of([])
        amount = sum(file.stored.size for file in piece)
        return Block(records, amount, [os.fsencode(file.name) for file in files])

    def _refusal(self, file: _File, error: Exception) -> DataError:
        why = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        return DataError(
            f"the picture cannot be stored: {why}; mend or remove the file, or leave such ones out "
            "with --on-error skip",
            url=str(file.stored),
        )

    def _row(self, file: _File, content: bytes | Exception) -> dict[str, Any]:
        if isinstance(content, Exception):
            raise content
        data, shape, kind = self._encode(content)
        return {
            "image/encoded": data,
            "image/format": kind,
            "image/height": shape[0],
            "image/width": shape[1],
            "image/channels": shape[2],
            "image/filename": os.fsencode(file.name),
            "image/class/label": file.label,
            "image/class/text": os.fsencode(file.name.partition("/")[0]),
        }

    def _encode(self, data: bytes) -> tuple[bytes, tuple[int, ...], bytes]:
        """Return a picture's bytes as they are stored, its shape, and its format."""
        import numpy as np

        from streamrec.formats.images.image import encode_jpeg, encode_png, format_of, read_picture
        from streamrec.formats.images.picture import OutputForm, at_least, fill_resized

        form, stored = self.form, format_of(data).lower()
        kind = form.encode or stored
        if form.size is None and form.encode is None:
            picture = read_picture(data, OutputForm())
            # A picture that is kept is decoded only where nothing else tells that it is whole.
            if kind == "tiff":
                picture.fill(np.empty(picture.shape, np.uint8))
            _check_end(data, kind)
            return data, picture.shape, kind.encode()
        output = OutputForm(least=at_least(form.size))
        picture = read_picture(data, output)
        if form.encode is None and kind not in ("jpeg", "png"):
            raise DataError(f"it cannot be written as {kind}; add --encode jpeg")
        channels = picture.shape[-1]
        # JPEG has no opacity.
        if kind == "jpeg":
            channels = 1 if channels < 3 else 3
        elif channels == 2:
            channels = 4  # gray with opacity is not resized
        # A WebP with opacity is not given without it, and loses it below.
        if channels != picture.shape[-1] and stored != "webp":
            picture = read_picture(data, output._replace(channels=channels))
        size = form.size or picture.shape[:2]
        pixels = np.empty((*size, picture.shape[-1]), np.uint8)
        fill_resized(picture, pixels)
        pixels = np.ascontiguousarray(pixels[..., :channels])
        encoded = encode_jpeg(pixels, form.quality) if kind == "jpeg" else encode_png(pixels)
        return encoded, pixels.shape, kind.encode()


def _check_end(data: bytes, kind: str) -> None:
    """Check that a picture was not cut off, as far as the beginning does not tell it.

    Raises:
        DataError: It was.
    """
    from streamrec.formats.images.jpeg import has_end

    if kind == "png":
        _check_png(data)
    if kind == "jpeg" and not has_end(memoryview(data)):
        raise DataError("it is cut off")


def _check_png(data: bytes) -> None:
    """Compare the checksums of the chunks that a decoder needs, since nothing is decoded.

    Source: the PNG specification, 5.3.

    Raises:
        DataError: One is wrong, or the file is cut off.
    """
    at, kind = 8, b""
    while kind != b"IEND":
        size = int.from_bytes(data[at : at + 4], "big")
        kind, end = data[at + 4 : at + 8], at + 8 + size
        if end + 4 > len(data):
            raise DataError("it is cut off")
        checksum = int.from_bytes(data[end : end + 4], "big")
        # A capital letter marks a chunk that a decoder needs; of others a wrong checksum does no
        # harm.
        if kind[:1].isupper() and zlib.crc32(data[at + 4 : end]) != checksum:
            raise DataError(f"the checksum of its chunk {kind.decode(errors='replace')!r} is wrong")
        at = end + 4


def open_pictures(
    place: str,
    *,
    features: Mapping[str, str | None] | None = None,
    resize: str | None = None,
    encode: Literal["jpeg", "png"] | None = None,
    quality: int = 95,
    storage_options: Mapping[str, Any] | None = None,
) -> PictureFolder:
    """Open a folder of pictures; see :class:`PictureFolder`.

    Raises:
        ConfigError: The place is not such a folder, or an argument is wrong.
    """
    from streamrec.stores.stored_files import names_in

    options = storage_options or {}
    if names_in(place, options) is None:
        raise ConfigError(f"{masked(place)}: there is no such directory; correct the path")
    size = None
    if resize is not None:
        width, _, height = resize.lower().partition("x")
        if not (width.isdecimal() and height.isdecimal() and int(width) * int(height)):
            raise ConfigError(f"--resize must be WIDTHxHEIGHT, as in 224x224, not {resize!r}")
        size = int(height), int(width)
    return PictureFolder.find(place, features, PictureForm(encode, quality, size), options)


KIND = SourceKind(
    "pictures",
    open_pictures,
    # No suffix: a directory in which nothing tells another kind is taken for one of pictures.
    options=(
        FEATURES,
        Option(name="resize", metavar="WxH", help="Pictures: resize them all to this size."),
        Option(name="encode", choices=("jpeg", "png"), help="Pictures: encode them anew."),
        Option(
            name="quality",
            type=int,
            least=0,
            most=100,
            help="Pictures: the quality of JPEGs.  [95]",
        ),
    ),
)
