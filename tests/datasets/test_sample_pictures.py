from __future__ import annotations

import io
from pathlib import Path

import PIL.Image

from streamrec.datasets import sample_pictures as module
from streamrec.datasets.sample_pictures import sample_pictures

PICTURES = Path(module.__file__).parent / "pictures"


def test_the_pictures_are_photographs_of_about_100_kb() -> None:
    assert len(sample_pictures()) >= 6
    for data in sample_pictures():
        assert 60_000 < len(data) < 120_000
        with PIL.Image.open(io.BytesIO(data)) as picture:
            picture.load()
            assert picture.format == "JPEG"
            assert min(picture.size) >= 300


def test_the_pictures_are_sorted_by_name() -> None:
    assert sample_pictures() == [path.read_bytes() for path in sorted(PICTURES.glob("*.jpg"))]


def test_every_picture_has_its_source_and_licence_named() -> None:
    readme = (PICTURES / "README.md").read_text()
    for path in PICTURES.glob("*.jpg"):
        (line,) = (line for line in readme.splitlines() if f"`{path.name}`" in line)
        assert "CC0" in line or "public domain" in line
