"""Pictures that the demo and simulations put into shards."""

from __future__ import annotations

from importlib.resources import files


def sample_pictures() -> list[bytes]:
    """Return this package's JPEG files of about 100 KB, sorted by name."""
    paths = files("streamrec.datasets").joinpath("pictures").iterdir()
    jpegs = sorted((path for path in paths if path.name.endswith(".jpg")), key=lambda p: p.name)
    return [path.read_bytes() for path in jpegs]
