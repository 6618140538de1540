from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.shard_tools.sources.opening import KINDS, open_source, parse_features
from streamrec.shard_tools.sources.picture_folder import PictureFolder
from tests.shard_tools.sources.folders import picture_folder

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_there_tells_the_kind(tmp_path: Path) -> None:
    root = str(picture_folder(tmp_path))
    assert isinstance(open_source(root, None, {}), PictureFolder)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--delimiter does not go with .* the kind pictures"):
        open_source(str(tmp_path), "pictures", {"delimiter": ";"})


def test_a_name_that_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--kind, one of {', '.join(KINDS)}"):
        open_source(f"{tmp_path}/x.unknown", None, {})


def test_features() -> None:
    assert parse_features("a, b = int64") == {"a": None, "b": "int64"}
    for wrong in ("", "a,,b", "a=", "a=text"):
        with pytest.raises(ConfigError, match="give them as in age=int64,name"):
            parse_features(wrong)
