from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.shard_tools.sources.opening import KINDS, open_source, parse_features
from streamrec.shard_tools.sources.picture_folder import PictureFolder
from tests.shard_tools.sources.folders import picture_folder

if TYPE_CHECKING:
    from pathlib import Path


def load(setting: str, name: str) -> Any:
    assert (setting, name) == ("SOURCE", "module:function")
    return list


def test_functions() -> None:
    source = open_source("module:function", None, {"source_version": "2"}, load)
    assert source.identity == {"function": "module:function", "version": "2", "key": None}


@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.jsonl"])
def test_suffixes(name: str, tmp_path: Path) -> None:
    data = b'{"a": 1}\n' if "json" in name else b"a\n1\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    for place in (tmp_path, tmp_path / name):
        assert open_source(str(place), None, {}, load).features == {"a": "int64"}


def test_what_is_there_tells_the_kind(tmp_path: Path) -> None:
    root = str(picture_folder(tmp_path))
    assert isinstance(open_source(root, None, {}, load), PictureFolder)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--delimiter does not go with .* the kind pictures"):
        open_source(str(tmp_path), "pictures", {"delimiter": ";"}, load)


def test_a_name_that_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--kind, one of {', '.join(KINDS)}"):
        open_source(f"{tmp_path}/x.unknown", None, {}, load)


def test_features() -> None:
    assert parse_features("a, b = int64") == {"a": None, "b": "int64"}
    for wrong in ("", "a,,b", "a=", "a=text"):
        with pytest.raises(ConfigError, match="give them as in age=int64,name"):
            parse_features(wrong)
