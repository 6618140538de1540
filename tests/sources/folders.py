"""Real inputs: folders of the package's own pictures, and tables of what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.datasets.sample_pictures import sample_pictures

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = ["animals", "space", "surface"]


def picture_folder(root: Path) -> Path:
    """Write the sample pictures into folders of classes, in turn."""
    for number, picture in enumerate(sample_pictures()):
        directory = root / CLASSES[number % len(CLASSES)]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number}.jpg").write_bytes(picture)
    return root
