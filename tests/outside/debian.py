"""Sources of Debian's packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["debian_source"]

SOURCES = Path("/etc/apt/sources.list.d")


@contextmanager
def debian_source(package: str) -> Iterator[Path | None]:
    """Unpack a package's original source; yield ``None`` where it cannot be had."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        yield _unpacked(package, place) if shutil.which("apt-get") else None


def _unpacked(package: str, place: Path) -> Path | None:
    """Fetch through lists of our own, since a machine mostly has none of sources."""
    (place / "parts").mkdir()
    (place / "lists/partial").mkdir(parents=True)
    for file in SOURCES.glob("debian*.sources"):
        text = re.sub(r"(?m)^Types: .*", "Types: deb-src", file.read_text())
        (place / "parts" / file.name).write_text(text)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(place / "parts"),
        "Dir::State::lists": str(place / "lists"),
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    for step in (["update"], ["source", "--download-only", package]):
        done = subprocess.run([*command, *step], cwd=place, capture_output=True, check=False)
        if done.returncode:
            return None
    found = next(place.glob("*.orig.tar.*"), None)
    if found is None:
        return None
    with tarfile.open(found) as archive:
        archive.extractall(place / "source", filter="data")
    return place / "source"
