from __future__ import annotations

import io
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config.places import escape
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ConfigError, ObjectChanged, ObjectNotFound
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.gcs.gcs_store import GCSStore
from streamrec.stores.s3.s3_store import S3Store
from streamrec.stores.stored_files import (
    file_contents,
    files_below,
    find_each,
    find_files,
    names_in,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

NAMES = ["b.csv", "a.csv", "deep/er/c [1].csv", "deep-er/d.csv", "e"]
HIDDEN = [".a.csv", "deep/._c.csv", ".deep/er/c.csv"]
"""Names that no pattern and no directory stands for."""
Place = tuple[str, dict[str, Any]]


def content(name: str) -> bytes:
    return b"" if name == "e" else name.encode() * 100


@pytest.fixture(params=["path", "file", "s3", "gs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A directory with files in it, and its options."""
    if request.param in ("path", "file"):
        for name in NAMES + HIDDEN:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content(name))
        yield (str(tmp_path) if request.param == "path" else tmp_path.as_uri()), {}
        return
    with DevStore() as store:
        for name in NAMES + HIDDEN:
            store.put(f"bucket/dir/{name}", content(name))
        options = store.storage_options if request.param == "s3" else store.gcs_options
        yield f"{request.param}://bucket/dir", options


def test_files(place: Place) -> None:
    url, options = place
    found = {file.name: file for file in find_files(url, options)}
    assert list(found) == ["a.csv", "b.csv", "e"]
    for name, file in found.items():
        assert file.size == len(content(name))
        with file.open() as opened:
            assert opened.read() == content(name)
    assert url.removeprefix("file://") in str(found["a.csv"])
    assert len({file.version for file in found.values()}) == 3
    assert list(file_contents(list(found.values()))) == list(map(content, found))
    assert list(file_contents([])) == []
    assert (
        list(map(str, find_files(url, options, (".csv", ".x"))))
        == list(map(str, found.values()))[:2]
    )


def test_files_by_name(place: Place) -> None:
    url, options = place
    names = [f"{url}/{name}" for name in ("e", "b.csv", "none", "deep", "deep-er/d.csv", "b.csv")]
    found = [file and file.name for file in find_each(names, options)]
    assert found == ["e", "b.csv", None, None, "d.csv", "b.csv"]


def test_hidden_files_are_found_by_their_names(place: Place) -> None:
    url, options = place
    names = [f"{url}/{name}" for name in HIDDEN]
    assert [file and file.name for file in find_each(names, options)] == [
        name.rpartition("/")[2] for name in HIDDEN
    ]
    for text in (f"{url}/.a.csv", f"{url}/.*.csv", f"{url}/.[a-c]?csv"):
        assert [file.name for file in find_files(text, options)] == [".a.csv"]
    assert [file.name for file in find_files(f"{url}/.deep/*/*.csv", options)] == ["c.csv"]


def test_names_are_no_patterns_where_they_exist() -> None:
    names = ["a{1,2}", "a1", "b[1]", "b1", "c*", "c1", "d@2", "run[1]/x", "run1/x", ".y.part"]
    with DevStore() as store:
        for name in names:
            store.put(f"bucket/dir/{name}", name.encode())
        for base, options in (("s3", store.storage_options), ("gs", store.gcs_options)):
            for name in names[:-1]:
                for text in (f"{base}://bucket/dir/{name}", escape(f"{base}://bucket/dir/{name}")):
                    (found,) = find_files(text, options)
                    assert found.url == f"{base}://bucket/dir/{name}"
            assert names_in(f"{base}://bucket/dir/run[1]", options) == ["x"]
            (named,) = find_each([f"{base}://bucket/dir/run[1]/x"], options)
            assert named is not None
            assert named.url == f"{base}://bucket/dir/run[1]/x"
            assert ".y.part" not in [
                file.name for file in find_files(f"{base}://bucket/dir/", options)
            ]
            assert ".y.part" not in files_below(f"{base}://bucket/dir", options)


def test_names_of_several(place: Place) -> None:
    url, options = place
    for pattern, names in {
        "a.csv": ["a.csv"],
        "*.csv": ["a.csv", "b.csv"],
        "{b,a}.csv": ["a.csv", "b.csv"],
        "{e,?.csv}": ["a.csv", "b.csv", "e"],
        "**/*.csv": ["a.csv", "b.csv", "d.csv", "c [1].csv"],
        "d*/**/*.csv": ["d.csv", "c [1].csv"],
        "*.no": [],
    }.items():
        assert [file.name for file in find_files(f"{url}/{pattern}", options)] == names
    assert sorted(names_in(url, options) or []) == ["a.csv", "b.csv", "e"]
    assert names_in(f"{url}/deep", options) == []
    assert names_in(f"{url}/a.csv", options) is None
    assert names_in(f"{url}/none", options) is None


def test_each_name_of_a_range_must_be_there(place: Place) -> None:
    url, options = place
    for pattern in ("{a,c}.csv", "x-{1..2}", "b@2.csv"):
        with pytest.raises(ObjectNotFound, match=r"there is no such (file|object)"):
            find_files(f"{url}/{pattern}", options)


def test_suffixes_of_any_case(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").touch()
    assert [file.name for file in find_files(str(tmp_path), {}, (".csv",))] == ["A.CSV"]
    with DevStore() as store:
        store.put("bucket/dir/A.CSV", b"")
        found = find_files("s3://bucket/dir/", store.storage_options, (".csv",))
        assert [file.name for file in found] == ["A.CSV"]


def test_a_pattern_does_not_stand_for_directories(place: Place) -> None:
    url, options = place
    assert [file.name for file in find_files(f"{url}/*e*", options)] == ["e"]


def test_directories_in_a_directory_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("b/x.csv", ".hidden/x.csv", "a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in find_files(str(tmp_path), {}, (".csv",))] == ["a.csv"]
    assert caplog.messages == [
        f"{tmp_path}: what its directory b holds is not read; the pattern "
        f"'{escape(str(tmp_path))}/**/*.csv' names the files of all directories"
    ]
    caplog.clear()
    find_files(str(tmp_path / "b"), {}, (".csv",))
    assert not caplog.messages


def test_all_files_below(place: Place) -> None:
    url, options = place
    found = files_below(f"{url}/", options)
    assert list(found) == ["a.csv", "b.csv", "deep/er/c [1].csv", "deep-er/d.csv", "e"]
    assert list(file_contents(list(found.values()))) == list(map(content, found))


def test_a_file_of_another_process(place: Place) -> None:
    file = pickle.loads(pickle.dumps(find_files(*place)[1]))
    with file.open() as opened:
        assert opened.read() == content("b.csv")


def test_files_in_a_store_are_read_by_ranges() -> None:
    data = bytes(range(256)) * 10
    with DevStore() as store:
        store.put("bucket/x", data)
        [file] = find_files("s3://bucket/x", store.storage_options)
        with file.open(1000) as opened:
            assert b"".join(iter(lambda: opened.read(300), b"")) == data
            assert opened.seek(-10, io.SEEK_END) == len(data) - 10
            assert opened.read() == data[-10:]
            assert opened.seek(0) == 0
            assert opened.read(5) == data[:5]
            store.faults = [FaultRule(status=403, code="AccessDenied")]
            opened.seek(2000)
            with pytest.raises(AccessDenied, match="s3://bucket/x"):
                opened.read(5)


def test_a_thousand_names_are_one_listing() -> None:
    with DevStore() as store:
        for number in range(20):
            store.put(f"bucket/dir/x-{number:03}", b"x")
        for scheme, options in (("s3", store.storage_options), ("gs", store.gcs_options)):
            store.statistics.clear()
            url = f"{scheme}://bucket/dir/x-{{000..019}}"
            assert len(find_files(url, options)) == 20
            assert store.statistics.requests <= 3


def test_one_name_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have the right to read an object and not that to list its directory."""
    with DevStore() as store:
        store.put("bucket/dir/x", b"x")
        listed: list[str] = []
        for kind in (S3Store, GCSStore):
            monkeypatch.setattr(kind, "list", lambda _, prefix, **__: listed.append(prefix))
        for scheme, options in (("s3", store.storage_options), ("gs", store.gcs_options)):
            [found] = find_files(f"{scheme}://bucket/dir/x", options)
            assert found.size == 1
        assert listed == []


def test_what_is_not_there(tmp_path: Path) -> None:
    assert find_files(str(tmp_path / "no"), {}) == []
    with DevStore() as store:
        store.objects.create_bucket("empty")
        assert find_files("s3://empty/", store.storage_options) == []
        store.put("bucket/x-1", b"x")
        for name in ("no", "no/", "x-{1,2}"):
            with pytest.raises(ObjectNotFound, match="there is no such object"):
                find_files(f"s3://bucket/{name}", store.storage_options)
        [file] = find_files("s3://bucket/x-1", store.storage_options)
        store.faults = [FaultRule(status=403, code="AccessDenied")]
        [error] = file_contents([file])
        assert isinstance(error, AccessDenied)
    (tmp_path / "x").touch()
    [file] = find_files(str(tmp_path / "x"), {})
    (tmp_path / "x").unlink()
    [error] = file_contents([file])
    assert isinstance(error, FileNotFoundError)
    with pytest.raises(ConfigError, match="nope"):
        find_files("nope://x", {})


@pytest.mark.parametrize("scheme", ["path", "s3", "gs"])
def test_all_of_a_file_is_of_one_version(scheme: str, tmp_path: Path) -> None:
    """Also where it is replaced by another one of the same size, before or while it is read."""
    one, other = b"1" * 100_000, b"2" * 100_000
    with DevStore() as store:

        def write(data: bytes) -> None:
            (tmp_path / "x").write_bytes(data)
            store.put("bucket/x", data)

        write(one)
        options = store.storage_options if scheme == "s3" else store.gcs_options
        place = str(tmp_path / "x") if scheme == "path" else f"{scheme}://bucket/x"
        [file] = find_files(place, options)
        with file.open(10_000) as opened:
            assert opened.read(10_000) == one[:10_000]
            write(other)
            with pytest.raises(ObjectChanged, match=r"x.*: this run reads version"):
                opened.read()
        with pytest.raises(ObjectChanged), pickle.loads(pickle.dumps(file)).open() as opened:
            opened.read()
        [error] = file_contents([file])
        assert isinstance(error, ObjectChanged)


def test_a_file_that_a_library_reads_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    [file] = find_files(str(path), {})
    file.check()
    path.write_bytes(b"22")
    with pytest.raises(ObjectChanged):
        file.check()


def test_a_copy_has_the_same_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    shutil.copy2(tmp_path / "x", tmp_path / "y")
    one, other = find_files(f"{tmp_path}/*", {})
    assert one.version != other.version
    assert one.fingerprint == other.fingerprint


def test_the_version_of_what_no_listing_tells_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nameless(store: S3Store, prefix: str, **_: bool) -> AsyncIterator[ObjectInfo]:
        for name in ("a", "b"):
            yield ObjectInfo(f"{prefix}{name}", 1 if name == "a" else None)

    monkeypatch.setattr(S3Store, "list", nameless)
    with DevStore() as store:
        for name in ("a", "b"):
            store.put(f"bucket/dir/{name}", name.encode())
        found = find_files("s3://bucket/dir/", store.storage_options)
        assert [(file.size, file.version is None) for file in found] == [(1, False)] * 2
        assert [file.open().read() for file in found] == [b"a", b"b"]


def test_files_of_a_server_that_cannot_list() -> None:
    with DevStore(anonymous=True) as store:
        store.put("bucket/dir/x-1", b"x")
        url = f"{store.endpoint}/bucket/dir"
        [found] = find_files(f"{url}/x-1", {})
        assert (found.name, found.size) == ("x-1", 1)
        named = list(find_each([f"{url}/x-1", f"{url}/no"], {}))
        assert [file and file.name for file in named] == ["x-1", None]
        store.put("bucket/dir/.y.part", b"y")
        assert list(find_each([f"{url}/.y.part"], {})) == [None]
        assert names_in(url, {}) is None
        with pytest.raises(ObjectNotFound):
            find_files(f"{url}/x-{{1,2}}", {})
