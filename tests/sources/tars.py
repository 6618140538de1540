"""Tars of samples, written by Python's own library."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

from streamrec.datasets.sample_pictures import sample_pictures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write_tar(path: Path, files: Iterable[tuple[str, bytes]], **options: Any) -> Path:
    """Write a tar of files, by its suffix compressed."""
    mode: Any = "w:gz" if path.name.endswith("gz") else "w"
    with tarfile.open(path, mode, **options) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def pictures() -> list[tuple[str, bytes]]:
    """Return the files of samples: the package's own pictures, with a class, a text and JSON."""
    files = []
    for number, picture in enumerate(sample_pictures()):
        files += [
            (f"./train/{number:04}.jpg", picture),
            (f"./train/{number:04}.cls", b"%d\n" % (number % 3)),
            (f"./train/{number:04}.txt", f"No. {number}, grün".encode()),
            (f"./train/{number:04}.json", b'{"box": [1, %d], "of": {"name": "p"}}' % number),
        ]
    return files
