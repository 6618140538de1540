"""What stands beside shards of signed URLs and in archives: an index and a manifest."""

from __future__ import annotations

import asyncio
import json
import shutil
import zipfile
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

import streamrec as sr
from streamrec.datasets.indexes import IndexCheck
from streamrec.datasets.reshard import types_of
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.verify import check
from streamrec.errors import ConfigError
from streamrec.formats.shards.index_names import index_places
from tests.cli.support import streamrec as cli
from tests.stores.http_server import serving
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SHARDS = ["x-00000-of-00002.tfrecord", "x-00001-of-00002.tfrecord"]
LABELS = {"cat": 0, "dog": 1}
OF_ALL = "policy=a/b&signature=s3cret"


def written(directory: Path) -> None:
    place = directory / "x.tfrecord"
    with sr.ShardedWriter(place, shards=2, labels=LABELS, overwrite=True) as writer:
        writer.write_many({"n": n} for n in range(10))


@asynccontextmanager
async def signed(directory: Path, *, each: bool) -> AsyncIterator[list[str]]:
    """Serve a directory to those who have a signature, of the directory or of each file."""
    await asyncio.to_thread(written, directory)

    def signature(name: str) -> str:
        return f"signature=s3cret-{name}" if each else OF_ALL

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.query_string != signature(name):
            return web.Response(status=403)
        path = directory / name
        return web.FileResponse(path) if path.exists() else web.Response(status=404)

    async with serving(answer) as url:
        yield [f"{url}/{name}?{signature(name)}" for name in SHARDS]


def numbers(source: list[str], index: Any = True, **settings: Any) -> list[int]:
    with sr.open(source, index=index, shuffle=False, engine="thread", **settings) as stream:
        return sorted(int(n) for batch in stream for n in batch["n"])


FEATURE = {"features": {"n": sr.FixedLenFeature((), "int64")}, "batch_size": 2}


@asynchronous
async def test_the_index_is_read_with_a_signature_that_all_shards_share(tmp_path: Path) -> None:
    async with signed(tmp_path, each=False) as source:
        assert await asyncio.to_thread(numbers, source, **FEATURE) == list(range(10))
        # A single shard is found in the index of all.
        found = await asyncio.to_thread(numbers, source[:1], **FEATURE)
        assert len(found) == 5


@asynchronous
async def test_beside_shards_with_signatures_of_their_own_the_error_says_why(
    tmp_path: Path,
) -> None:
    async with signed(tmp_path, each=True) as source:
        for shards in (source, source[:1]):
            with pytest.raises(ConfigError, match=r"index beside .* opens one object") as caught:
                await asyncio.to_thread(numbers, shards, **FEATURE)
            assert "s3cret" not in str(caught.value)
        # Nothing else is lost.
        await asyncio.to_thread(numbers, source, **FEATURE | {"index": None})


@asynchronous
async def test_an_index_of_its_own_signature(tmp_path: Path) -> None:
    async with signed(tmp_path, each=True) as source:
        place = source[0].replace(SHARDS[0], "x.streamrec-index")
        found = await asyncio.to_thread(numbers, source, **FEATURE | {"index": place})
        assert found == list(range(10))


@asynchronous
async def test_verify_compares_it(tmp_path: Path) -> None:
    async with signed(tmp_path, each=False) as source:
        found = IndexCheck()
        assert not [fault for report in await check(source, index=found) for fault in report.faults]
        assert found.url is not None
        assert not found.faults
        assert all(found.entry(url) for url in source)


@asynchronous
async def test_the_manifest_s_types_and_labels_are_known(tmp_path: Path) -> None:
    for each, count in ((False, 1), (True, 0)):
        async with signed(tmp_path, each=each) as source:
            found = await asyncio.to_thread(lambda s: types_of(ShardSource.find(s)), source)
            assert len(found.get("features") or {}) == count


def test_places_have_the_query_that_all_shards_share() -> None:
    urls = [f"https://host/{name}" for name in SHARDS]
    place = "https://host/x.streamrec-index"
    assert index_places(urls) == [place]
    assert index_places([f"{url}?s=1" for url in urls]) == [f"{place}?s=1"]
    assert index_places([f"{url}?s={i}" for i, url in enumerate(urls)]) == [place]
    assert index_places([f"{urls[0]}?s=1", urls[1]]) == [place]
    assert index_places([f"{urls[0]}?s=1"])[-1] == f"{place}?s=1"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Return shards in an archive that has their index and their manifest, too."""
    written(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for path in sorted(tmp_path.glob("x*")):
            packed.write(path, f"in/{path.name}")
    return f"zip://in/*.tfrecord::{tmp_path}/a.zip"


def test_in_an_archive(archive: str) -> None:
    assert numbers([archive], **FEATURE) == list(range(10))
    assert sr.labels(archive) == LABELS
    assert json.loads(cli("verify", archive, "--json").out)["index"]["faults"] == []


def test_records_of_an_archive_keep_their_types(archive: str, tmp_path: Path) -> None:
    assert cli("reshard", archive, tmp_path / "new.tfrecord", "--shards", "1").code == 0
    assert sr.labels(str(tmp_path / "new-*")) == LABELS


def test_beside_several_archives_is_nothing(archive: str, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "a.zip", tmp_path / "b.zip")
    both = archive.replace("a.zip", "*.zip")
    for sources in ([both], [archive, str(tmp_path / SHARDS[0])]):
        with pytest.raises(ConfigError, match=r"not all shards .* some are in /.*/a\.zip, so"):
            numbers(sources, **FEATURE)
    assert cli("verify", both).code == 0
    assert cli("reshard", both, tmp_path / "new.tfrecord", "--shards", "1").code == 0


def test_nothing_is_written_into_an_archive(archive: str, tmp_path: Path) -> None:
    outcome = cli("index", archive)
    refused = "nothing is written into an archive; name a place outside of it"
    assert (outcome.code, refused in outcome.err) == (2, True)
    for write in (sr.TFRecordWriter, partial(sr.ShardedWriter, shards=1)):
        with pytest.raises(ConfigError, match=refused):
            write(f"zip://x.tfrecord::{tmp_path}/new.zip")


def test_no_verb_writes_into_an_archive(archive: str, tmp_path: Path) -> None:
    inside = f"zip://x.tfrecord::{tmp_path}/new.zip"
    for verb in (["reshard", archive, inside], ["merge-index", inside]):
        outcome = cli(*verb)
        assert (outcome.code, "nothing is written into an archive" in outcome.err) == (2, True)
