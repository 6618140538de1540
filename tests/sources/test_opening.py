from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.devstore import DevStore
from streamrec.errors import ConfigError
from streamrec.sources.opening import KINDS, kind_of, open_source, options_of_kinds
from streamrec.sources.picture_folder import PictureFolder
from tests.by_day import each_once
from tests.pages import DOCS
from tests.sources.folders import picture_folder
from tests.sources.test_delimited import records_of

if TYPE_CHECKING:
    from pathlib import Path


def load(setting: str, name: str) -> Any:
    assert (setting, name) == ("SOURCE", "module:function")
    return list


def test_functions() -> None:
    source = open_source("module:function", None, {"source_version": "2"}, load)
    assert source.identity == {"function": "module:function", "version": "2", "key": None}


@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.jsonl", "X.CSV", "X.TSV.GZ", "x.Jsonl"])
def test_suffixes(name: str, tmp_path: Path) -> None:
    data = b'{"a": 1, "b": 2}\n' if "json" in name.lower() else b"a\tb\n1\t2\n"
    data = data.replace(b"\t", b",") if "csv" in name.lower() else data
    (tmp_path / name).write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    for place in (tmp_path, tmp_path / name):
        assert open_source(str(place), None, {}, load).features == {"a": "int64", "b": "int64"}


def test_files_of_two_kinds_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.jsonl").write_text('{"a": 2}\n')
    with pytest.raises(
        ConfigError,
        match=r"holds files of several kinds, csv \(a\.csv\) and jsonl \(b\.jsonl\); choose one "
        "with --kind, or name its files by a pattern",
    ):
        open_source(str(tmp_path), None, {}, load)
    assert len(records_of(open_source(str(tmp_path), "jsonl", {}, load))) == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.tar", "webdataset"),
        ("x-{00..11}.tar.gz", "webdataset"),
        ("shard.00000.mds.zstd", "mds"),
        ("mds/index.json", "mds"),
        ("x.array_record", "arrayrecord"),
        ("x.parquet", "arrow"),
    ],
)
def test_names_tell_the_kind(name: str, kind: str) -> None:
    assert kind_of(name, {}) == kind
    assert kind_of(f"s3://bucket/{name}", {}) == kind


def test_what_is_there_tells_the_kind(tmp_path: Path) -> None:
    root = str(picture_folder(tmp_path))
    assert isinstance(open_source(root, None, {}, load), PictureFolder)


@pytest.mark.parametrize(("scheme", "kind"), each_once(["s3", "gs"], ["csv", "jsonl", "pictures"]))
def test_sources_in_stores_give_the_same_records(scheme: str, kind: str, tmp_path: Path) -> None:
    if kind == "pictures":
        picture_folder(tmp_path)
    else:
        for name in ("a", "b"):
            row = json.dumps({"x": name}) if kind == "jsonl" else f"x\n{name}"
            (tmp_path / f"{name}.{kind}.gz").write_bytes(gzip.compress(row.encode()))
    here = open_source(str(tmp_path), None, {}, load)
    with DevStore() as store:
        for path in tmp_path.rglob("*.*"):
            store.put(f"bucket/{tmp_path.name}/{path.relative_to(tmp_path)}", path.read_bytes())
        options = store.storage_options if scheme == "s3" else store.gcs_options
        there = open_source(f"{scheme}://bucket/{tmp_path.name}/", None, {}, load, options)
        assert there.features == here.features
        assert there.total == here.total
        assert there.identity != here.identity
        assert records_of(there) == records_of(here)


def test_the_version_of_a_source_in_a_store() -> None:
    with DevStore() as store:
        for scheme, options in (("s3", store.storage_options), ("gs", store.gcs_options)):
            store.put("bucket/x.csv", b"a\n1")
            url = f"{scheme}://bucket/*.csv"
            first = open_source(url, None, {}, load, options).identity
            assert open_source(url, None, {}, load, options).identity == first
            store.put("bucket/x.csv", b"a\n2")
            assert open_source(url, None, {}, load, options).identity != first


def test_functions_are_not_in_stores() -> None:
    with pytest.raises(ConfigError, match="kind generator is read from local files"):
        open_source("s3://bucket/x", "generator", {}, lambda *_: list)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--delimiter does not go with .* the kind pictures"):
        open_source(str(tmp_path), "pictures", {"delimiter": ";"}, load)


def test_a_name_that_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.unknown").touch()
    with pytest.raises(ConfigError, match=f"--kind, one of {', '.join(KINDS)}"):
        open_source(f"{tmp_path}/x.unknown", None, {}, load)


def test_a_source_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file or directory; correct"):
        open_source(f"{tmp_path}/nothing/", None, {}, load)


def test_shards_are_no_source() -> None:
    with pytest.raises(ConfigError, match="streamrec reshard writes shards anew"):
        open_source("s3://bucket/train-*.tfrecord", None, {}, load)


def test_the_reference_has_the_kinds_and_their_options() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    for kind in KINDS.values():
        suffixes = ", ".join(f"`{suffix}`" for suffix in kind.suffixes)
        options = ", ".join(f"`{option.on_command_line}`" for option in kind.options)
        assert re.search(
            rf"^\| `{kind.name}` \| [^|]+ \| {suffixes} ?\| {options} ?\|$", page, re.MULTILINE
        )
    for option in options_of_kinds().values():
        value = option.metavar or "\\|".join(option.choices) or ("N" if option.type is int else "")
        assert f"\n| `{option.on_command_line}{' ' * bool(value)}{value}`" in page
