from __future__ import annotations

import io
from pathlib import Path

import PIL.Image

import streamrec
from streamrec.demo.plan import FEATURES
from streamrec.demo.shards import pictures, write_shards
from streamrec.formats.examples.descriptions import from_description
from tests.demo.support import SMALL

PICTURES = Path(streamrec.__file__).parent / "demo" / "pictures"


def test_the_pictures_are_photographs_of_about_100_kb() -> None:
    assert len(pictures()) >= 6
    for data in pictures():
        assert 60_000 < len(data) < 120_000
        with PIL.Image.open(io.BytesIO(data)) as picture:
            picture.load()
            assert picture.format == "JPEG"
            assert min(picture.size) >= 300


def test_the_pictures_are_sorted_by_name() -> None:
    assert pictures() == [path.read_bytes() for path in sorted(PICTURES.glob("*.jpg"))]


def test_every_picture_has_its_source_and_licence_named() -> None:
    readme = (PICTURES / "README.md").read_text()
    for path in PICTURES.glob("*.jpg"):
        (line,) = (line for line in readme.splitlines() if f"`{path.name}`" in line)
        assert "CC0" in line or "public domain" in line


def test_shards(tmp_path: Path) -> None:
    said: list[int] = []
    size = write_shards(tmp_path, SMALL, said.append)
    assert said == [4 * (i + 1) for i in range(8)]
    paths = sorted(tmp_path.iterdir())
    assert paths[-1].name == "pictures-00007-of-00008.tfrecord"
    assert sum(path.stat().st_size for path in paths) == size
    images = pictures()
    source = f"{tmp_path}/pictures-*"
    stream = streamrec.open(source, from_description(FEATURES), lanes=1, engine="thread")
    with stream:
        records = list(stream)
    assert [int(record["id"]) for record in records] == list(range(SMALL.records))
    assert all(record["image"] == images[int(record["label"])] for record in records)
