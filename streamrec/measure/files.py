"""The files of figures that ``streamrec bench --json`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pydantic_core import from_json

from streamrec.config.named_files import check_file
from streamrec.errors import ConfigError
from streamrec.measure.figures import VERSION, Figures

if TYPE_CHECKING:
    import os

MOST = 64 << 20
"""The most bytes of a file; no benchmark writes more."""
REMEDY = "name a file that streamrec bench --json wrote"


def read_figures(path: str | os.PathLike[str]) -> Figures:
    """Return the figures of a file.

    Raises:
        ConfigError: The file cannot be read, or holds something else, or another version's form.
    """
    text = _text(Path(path))
    try:
        version = from_json(text)["version"]
    except (ValueError, TypeError, LookupError):
        raise ConfigError(f"{path} holds no figures of a benchmark; {REMEDY}") from None
    if version != VERSION:
        raise ConfigError(
            f"{path} holds figures of version {version!r}, and this release reads version "
            f"{VERSION}; compare them with the release that wrote them, or measure anew"
        )
    try:
        return Figures.model_validate_json(text)
    except ValidationError as error:
        wrong = _first(error)
    raise ConfigError(f"{path} does not have the form of figures ({wrong}); {REMEDY}")


def _text(path: Path) -> bytes:
    check_file(path, "the command")
    try:
        with path.open("rb") as file:
            text = file.read(MOST + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from None
    if len(text) > MOST:
        raise ConfigError(f"{path} is larger than any benchmark's figures; {REMEDY}")
    return text


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
