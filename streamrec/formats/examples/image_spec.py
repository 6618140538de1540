"""The base of specs, and the spec of encoded pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, TypeAlias, overload

from typing_extensions import TypeVar

from streamrec.config.plain_values import byte_size
from streamrec.errors import ConfigError
from streamrec.formats.examples.defaults import check_optional_key, normal_shape, normal_sizes
from streamrec.formats.images.picture import is_fast
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config.keywords import Number, OtherDType, String


PIXELS = {"uint8": 1, "uint16": 2, "float32": 4}
"""The bytes of a channel of a pixel, by its dtype."""
Shape: TypeAlias = "SupportsIndex | Sequence[SupportsIndex]"
AnyDType: TypeAlias = "Number | String | OtherDType"
Gives_co = TypeVar("Gives_co", default=Any, covariant=True)
GivesOther = TypeVar("GivesOther", BytesColumn, Arrays, Ragged, Sparse)
"""The type of the columns of specs that all give the same one, other than arrays."""


class DenseColumn:
    """The type parameter of specs that give arrays.

    It stands for ``npt.NDArray[Any]``: where an argument's type holds an ``Any``, mypy takes
    overloads for ambiguous.
    """


class Spec(Generic[Gives_co]):
    """The base of all specs, generic over the columns that they give in batches of Examples."""

    def _set(self, **values: Any) -> None:
        """Set attributes in their normal form, although specs are frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Image(Spec[Gives_co]):
    """A feature that holds one encoded picture: JPEG, PNG, GIF, BMP, WebP or TIFF.

    For an animation, the first frame is taken.

    Args:
        shape: The ``(height, width)`` of all pictures, or ``(height, width, channels)``; ``None``:
            they may have any size.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA), as ``streamrec.decode_image`` takes them. A
            shape with channels takes precedence. 0: as many as each picture has, which needs
            neither ``shape`` nor ``resize`` nor ``crop``.
        resize: The ``(height, width)`` to which pictures of any size are resized, by antialiased
            bilinear interpolation. Large JPEGs are decoded at a fraction for it.
        dct_method: As ``streamrec.decode_jpeg``'s; ``""`` is TensorFlow's default.
        crop: The window ``(top, left, height, width)`` that is cut out of each picture, in pixels;
            ``resize`` then resizes it. If nvImageCodec is installed (the extra ``crop``), only the
            window of a JPEG is decoded.
        key: The feature's name in the records; ``None``: that of the column, which is the spec's
            key in the mapping. So one picture may make several columns.
        max_pixels: Pixels of the largest picture that is decoded, as ``decode_image``'s;
            ``None``: as many as the stream's ``max_pixels``.
        max_bytes: Bytes that the column may take in one batch, with what decoding takes besides:
            a number, or a text such as ``"256MiB"``; ``None``: the stream's ``max_bytes`` alone,
            which holds in any case.
        sequence: The feature of an Example holds any number of pictures, as TFDS writes videos.
        dtype: The dtype of the pixels: ``"uint8"``; ``"uint16"``, for PNG; or ``"float32"``, for a
            PNG of RGBA whose four bytes a pixel are one little-endian float, as TFDS writes depth.

    Raises:
        ConfigError: An argument is wrong.
    """

    shape: Any = None
    channels: int = 3
    resize: Any = None
    dct_method: str = ""
    crop: Any = None
    key: str | None = None
    max_pixels: int | None = None
    max_bytes: Any = None
    sequence: bool = False
    dtype: str = "uint8"

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Image[Arrays],
            shape: None = None,
            channels: int = 3,
            resize: None = None,
            dct_method: str = "",
            crop: None = None,
            key: str | None = None,
            max_pixels: int | None = None,
            max_bytes: int | str | None = None,
            *,
            dtype: str = "uint8",
        ) -> None: ...
        @overload
        def __init__(
            self: Image[Ragged],
            shape: Shape | None = None,
            channels: int = 3,
            resize: Shape | None = None,
            dct_method: str = "",
            crop: Shape | None = None,
            key: str | None = None,
            max_pixels: int | None = None,
            max_bytes: int | str | None = None,
            *,
            sequence: Literal[True],
            dtype: str = "uint8",
        ) -> None: ...
        @overload
        def __init__(
            self: Image[DenseColumn],
            shape: Shape | None = None,
            channels: int = 3,
            resize: Shape | None = None,
            dct_method: str = "",
            crop: Shape | None = None,
            key: str | None = None,
            max_pixels: int | None = None,
            max_bytes: int | str | None = None,
            *,
            dtype: str = "uint8",
        ) -> None: ...
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __post_init__(self) -> None:
        shape = None if self.shape is None else normal_shape(self.shape)
        resize = None if self.resize is None else normal_shape(self.resize)
        crop = None if self.crop is None else normal_sizes(self.crop)
        channels = shape[2] if shape and len(shape) == 3 else self.channels
        if shape is not None and (len(shape) not in (2, 3) or 0 in shape):
            raise ConfigError(
                f"a picture's shape must be (height, width), (height, width, channels) or None, "
                f"not {self.shape!r}"
            )
        if resize is not None and (len(resize) != 2 or 0 in resize):
            raise ConfigError(f"resize must be (height, width) or None, not {self.resize!r}")
        if crop is not None and (len(crop) != 4 or 0 in crop[2:]):
            raise ConfigError(f"crop must be (top, left, height, width) or None, not {self.crop!r}")
        if shape and (resize or crop):
            given, value = ("resize", self.resize) if resize else ("crop", self.crop)
            raise ConfigError(
                f"shape={self.shape!r} says that all pictures have this size, and "
                f"{given}={value!r} gives them another; leave out the shape"
            )
        if isinstance(channels, bool) or channels not in (0, 1, 3, 4):
            raise ConfigError(f"channels must be 0, 1, 3 or 4, not {channels!r}")
        if (shape or resize or crop) and not channels:
            raise ConfigError(
                "channels=0 leaves the pictures' channels open, so neither a shape nor a size to "
                "resize to nor a crop can be given; say the channels, or leave it out"
            )
        # For its error alone.
        is_fast(self.dct_method)
        check_optional_key("key", self.key)
        self._check_form(channels)
        pixels, most = self.max_pixels, self.max_bytes
        # By type(), since True is an int.
        if pixels is not None and (type(pixels) is not int or pixels < 1):
            raise ConfigError(f"max_pixels must be a number from 1 up, not {pixels!r}")
        most = None if most is None else byte_size("max_bytes", most)
        # The channels are taken out of the shape, so that equal specs compare equal.
        self._set(shape=shape and shape[:2], channels=channels, resize=resize, crop=crop)
        self._set(max_bytes=most)

    def _check_form(self, channels: int) -> None:
        """Refuse a dtype that no picture has, or that cannot be resized or cut."""
        if type(self.sequence) is not bool:
            raise ConfigError(f"sequence must be True or False, not {self.sequence!r}")
        if self.dtype not in PIXELS:
            raise ConfigError(f"dtype must be one of {', '.join(PIXELS)}, not {self.dtype!r}")
        if self.dtype != "uint8" and (self.resize or self.crop):
            raise ConfigError(
                f"pictures of {self.dtype} are not resized and not cut; leave out resize and crop"
            )
        if self.dtype == "float32" and channels != 1:
            raise ConfigError(f"pictures of float32 have 1 channel, not {channels!r}; correct it")

    @property
    def size(self) -> tuple[int, int] | None:
        """The ``(height, width)`` that all decoded pictures have; ``None``: they have any."""
        return self.resize or (self.crop and self.crop[2:]) or self.shape  # type: ignore[no-any-return]
