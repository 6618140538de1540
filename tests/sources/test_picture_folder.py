from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image
import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError
from streamrec.sources.picture_folder import TYPES, open_pictures
from tests.sources.folders import CLASSES, picture_folder
from tests.sources.test_delimited import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.sources.picture_folder import PictureFolder

KINDS: dict[str, Any] = dict(TYPES)
ALL: Any = {name: sr.FixedLenFeature((), dtype) for name, dtype in KINDS.items()}


def fail(error: DataError) -> None:
    raise error


def rows(source: PictureFolder, specs: Any = ALL) -> Any:
    (piece,) = source.pieces()
    records: Any = source.read(piece, fail).records
    return sr.parse_example(records, specs)


def test_bytes_as_they_are(tmp_path: Path) -> None:
    source = open_pictures(str(picture_folder(tmp_path)))
    found = rows(source)
    assert source.labels == {name: n for n, name in enumerate(CLASSES)}
    names = [name.decode() for name in found["image/filename"].to_list()]
    assert names == sorted(names)
    for row, name in enumerate(names):
        data = (tmp_path / name).read_bytes()
        assert found["image/encoded"][row] == data
        shape = tuple(int(found[f"image/{side}"][row]) for side in ("height", "width", "channels"))
        assert shape == sr.decode_jpeg(data).shape
        assert CLASSES[int(found["image/class/label"][row])] == name.partition("/")[0]
    assert set(found["image/format"].to_list()) == {b"jpeg"}
    assert found["image/class/text"][0] == b"animals"


@pytest.mark.parametrize("encode", [None, "jpeg", "png"])
def test_resized(encode: Any, tmp_path: Path) -> None:
    source = open_pictures(str(picture_folder(tmp_path)), resize="40x30", encode=encode)
    found = rows(source)
    assert set(found["image/format"].to_list()) == {(encode or "jpeg").encode()}
    assert found["image/height"].tolist() == [30] * 8
    assert {sr.decode_image(data).shape[:2] for data in found["image/encoded"]} == {(30, 40)}


@pytest.mark.parametrize("resize", [None, "8x4"])
@pytest.mark.parametrize(
    ("mode", "jpeg", "png"),
    [("L", 1, 1), ("LA", 1, 4), ("RGB", 3, 3), ("RGBA", 3, 4)],
)
def test_opacity_stays_where_the_format_has_it(
    mode: str, jpeg: int, png: int, resize: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    PIL.Image.new(mode, (6, 5), 90).save(tmp_path / "a" / "x.png")
    encodings: Any = {"jpeg": jpeg, "png": png} | ({None: png} if resize else {})
    for encode, channels in encodings.items():
        found = rows(open_pictures(str(tmp_path), resize=resize, encode=encode))
        assert found["image/channels"].tolist() == [channels]
        assert sr.decode_image(found["image/encoded"][0]).shape[2] == channels
        assert found["image/format"].to_list() == [(encode or "png").encode()]


@pytest.mark.parametrize("resize", [None, "8x4"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_webp_loses_its_opacity_as_a_jpeg(
    frames: int, resize: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    clear = [PIL.Image.new("RGBA", (6, 5), (200, 90, 10, 128 - n)) for n in range(frames)]
    more: Any = {"save_all": True, "append_images": clear[1:]} if frames > 1 else {}
    clear[0].save(tmp_path / "a" / "x.webp", lossless=True, **more)
    for encode, channels in (("jpeg", 3), ("png", 4)):
        form: Any = encode
        found = rows(open_pictures(str(tmp_path), resize=resize, encode=form))
        assert found["image/channels"].tolist() == [channels]
        pixels = sr.decode_image(found["image/encoded"][0])
        assert np.abs(pixels[..., :3].astype(int) - [200, 90, 10]).max() < 9


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("x.jpg", {}),
        ("x.jpg", {"progressive": True}),
        ("x.png", {}),
        ("x.gif", {}),
        ("x.bmp", {}),
        ("x.webp", {}),
        ("x.tif", {}),
        ("x.tif", {"compression": "tiff_lzw"}),
    ],
)
def test_a_picture_that_was_cut_off(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "class" / name
    path.parent.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    PIL.Image.fromarray(noise).save(path, **how)
    whole = path.read_bytes()
    assert rows(open_pictures(str(tmp_path)))["image/encoded"].to_list() == [whole]
    for cut in (len(whole) // 3, 2 * len(whole) // 3, len(whole) - 2):
        path.write_bytes(whole[:cut])
        if name == "x.gif" and cut > len(whole) - 3:
            continue  # its end mark alone is missing
        with pytest.raises(DataError, match=f"{name}: the picture cannot be stored"):
            rows(open_pictures(str(tmp_path)))


def test_what_cannot_be_read_is_not_told_to_be_encoded(tmp_path: Path) -> None:
    path = tmp_path / "class" / "x.jpg"
    path.parent.mkdir()
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="do not begin as a picture of any known format"):
        rows(open_pictures(str(tmp_path), resize="8x4"))


def test_encoded_anew_as_tensorflow_would(tmp_path: Path) -> None:
    found = rows(open_pictures(str(picture_folder(tmp_path)), encode="jpeg", quality=60))
    name = found["image/filename"][0].decode()
    pixels = sr.decode_jpeg((tmp_path / name).read_bytes(), dct_method="INTEGER_ACCURATE")
    ours = sr.decode_jpeg(found["image/encoded"][0])
    assert np.abs(ours.astype(int) - pixels).mean() < 9


def test_chosen_features(tmp_path: Path) -> None:
    place = str(picture_folder(tmp_path))
    chosen: dict[str, str | None] = {"image/encoded": None, "image/class/label": None}
    source = open_pictures(place, features=chosen)
    assert source.features == {"image/class/label": "int64", "image/encoded": "bytes"}
    assert list(rows(source, {name: ALL[name] for name in chosen})) == list(chosen)
    with pytest.raises(ConfigError, match="has no 'label'; choose among image/channels"):
        open_pictures(place, features={"label": None})
    with pytest.raises(ConfigError, match="image/encoded is of type bytes"):
        open_pictures(place, features={"image/encoded": "int64"})


def test_a_broken_picture(tmp_path: Path) -> None:
    source = open_pictures(str(picture_folder(tmp_path)))
    broken = tmp_path / "space" / "1.jpg"
    broken.write_bytes(b"no picture")
    (piece,) = source.pieces()
    with pytest.raises(DataError, match=r"space/1.jpg: the picture cannot be stored: .*--on-error"):
        source.read(piece, fail)
    errors: list[DataError] = []
    block = source.read(piece, errors.append)
    assert (len(block.records), len(errors)) == (7, 1)
    assert block.keys is not None
    assert len(block.keys) == 7


def test_the_version_follows_the_files(tmp_path: Path) -> None:
    source = open_pictures(str(picture_folder(tmp_path)))
    assert source.total == sum(path.stat().st_size for path in tmp_path.rglob("*.jpg"))
    before = source.identity
    assert json.dumps(before) == json.dumps(open_pictures(str(tmp_path)).identity)
    (tmp_path / "space" / "1.jpg").write_bytes(b"x")
    assert before != open_pictures(str(tmp_path)).identity


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its directories hold no pictures.* --kind bert"):
        open_pictures(str(tmp_path))
    with pytest.raises(ConfigError, match="no such directory"):
        open_pictures(str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="must be WIDTHxHEIGHT, as in 224x224, not '0x3'"):
        open_pictures(str(picture_folder(tmp_path)), resize="0x3")


def test_checksums_of_stored_pngs_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "class" / "1.png"
    path.parent.mkdir()
    good = sr.encode_png(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    path.write_bytes(good)
    assert len(records_of(open_pictures(str(tmp_path)))) == 1
    at = good.index(b"IDAT") + 6
    for data, words in (
        (good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], "chunk 'IDAT' is wrong"),
        (good[:-12], "it is cut off"),
        (good[:-1], "it is cut off"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"the picture cannot be stored: .*{words}"):
            records_of(open_pictures(str(tmp_path)))
