from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.config.cache_and_audit import AuditSettings, default_folder
from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("written", "folder", "size"),
    [
        ("memory", "memory", None),
        ("4GiB", None, 4 * GIB),
        ("1.5 GiB", None, 3 * GIB // 2),
        (4 * GIB, None, 4 * GIB),
        ("/data/cache", "/data/cache", None),
        (Path("/data/cache"), "/data/cache", None),
        ("~/cache", "~/cache", None),
        ("./4GiB", f"{Path.cwd()}/./4GiB", None),
        ({"folder": Path("/x"), "size": "1GiB"}, "/x", GIB),
        ({"folder": "memory", "size": GIB}, "memory", GIB),
        ({}, None, None),
    ],
)
def test_every_form(written: Any, folder: str | None, size: int | None) -> None:
    settings = validate(DatasetSettings, {"source": "x", "cache": written})
    assert settings.cache is not None
    assert (settings.cache.folder, settings.cache.size) == (folder, size)
    again = validate(DatasetSettings, settings.model_dump())
    assert again == settings


@pytest.mark.parametrize(
    "written",
    [
        {"of": "batches"},
        {"of": "pictures"},
        {"of": "mapped", "key": "parse-2"},
        {"of": "batches", "folder": "/x", "size": "1GiB"},
    ],
)
def test_of_decoded_data(written: Any) -> None:
    given = {"map": "a:f"} if written["of"] == "mapped" else {}
    settings = validate(DatasetSettings, {"source": "x", "cache": written, **given})
    assert settings.cache is not None
    assert settings.cache.of == written["of"]
    assert validate(DatasetSettings, settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize("written", ["memory", "4GiB", "/batches", {"of": "ranges"}, {}])
def test_of_ranges(written: Any) -> None:
    settings = validate(DatasetSettings, {"source": "x", "cache": written})
    assert settings.cache is not None
    assert settings.cache.of == "ranges"


@pytest.mark.parametrize("written", [None, False, ""])
def test_no_cache(written: Any) -> None:
    assert validate(DatasetSettings, {"source": "x", "cache": written}).cache is None


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (True, 'the setting \'cache\' is True; give a size such as "4GiB", a folder, or "memory"'),
        (
            "mapped",
            "the setting 'cache' is 'mapped', which would be a folder; give {'of': 'mapped'}",
        ),
        ("1MiB", "the setting 'cache' has less than the 16 MiB"),
        ("10GB disk", "the setting 'cache' is '10GB disk'; give a size alone, such as"),
        ({"size": "10GB disk"}, "the setting 'cache'"),
        (
            {"folder": "/x", "sizes": 3},
            "the setting 'cache' has no key 'sizes'; its keys are of, folder, size",
        ),
        (
            {"of": "records"},
            "the setting 'cache' is 'records' but must be 'ranges', 'pictures', 'mapped'",
        ),
        ({"size": "much"}, "the setting 'cache'"),
        (["/x"], "the setting 'cache'"),
        ({"key": "a"}, "the setting 'cache' has a key, which is for what map makes"),
        ({"of": "mapped"}, "the setting 'cache' keeps what map makes, and there is no map"),
        ({"of": "mapped", "key": ""}, "the setting 'cache'"),
    ],
)
def test_wrong_forms_are_refused(written: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(DatasetSettings, {"source": "x", "cache": written})
    assert str(caught.value).startswith(says)


def test_the_default_folder_is_in_the_users_cache_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_folder() == Path("/caches/streamrec/ranges")
    assert default_folder("batches") == Path("/caches/streamrec/batches")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder() == Path("/home/me/.cache/streamrec/ranges")


HERE = Path.cwd()


@pytest.mark.parametrize(
    ("written", "url", "every"),
    [
        ("s3://bucket/run-7", "s3://bucket/run-7/", 300.0),
        ("run-7/", f"{HERE}/run-7/", 300.0),
        (Path("/logs"), "/logs/", 300.0),
        ({"url": "gs://b/x/", "every": "5min"}, "gs://b/x/", 300.0),
        ({"url": Path("/logs"), "every": 20}, "/logs/", 20.0),
        (AuditSettings(url="s3://b/x/", every=9.0), "s3://b/x/", 9.0),
    ],
)
def test_every_form_of_an_audit_log(written: Any, url: str, every: float) -> None:
    settings = validate(StreamSettings, {"source": "x", "audit": written})
    assert settings.audit is not None
    assert (settings.audit.url, settings.audit.every) == (url, every)
    assert sr.connect("tcp://host:1/x", audit=written)._description.audit == settings.audit


@pytest.mark.parametrize("written", ["audit = false", 'audit = ""', ""])
def test_none(written: str) -> None:
    values = tomllib.loads(written)
    assert validate(StreamSettings, {"source": "x", **values}).audit is None


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (3, "valid string"),
        ({}, "has no url"),
        ({"every": 3}, "has no url"),
        ({"url": ""}, "has no url"),
        ("s3://", "'s3://', which names no directory"),
        ({"url": "x", "at": 1}, "has no key 'at'; its keys are url, every, storage_options"),
        ({"url": "x", "every": "5 hours"}, "every is '5 hours'"),
        ({"url": "x", "every": 0.5}, "greater than or equal to 1"),
        ({"url": "x", "storage_options": 3}, "audit"),
    ],
)
def test_refusals(written: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate(StreamSettings, {"source": "x", "audit": written})


def test_options_are_hidden_and_their_paths_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key.json").touch()
    options = {"token": "key.json", "secret": "hush"}
    written = {"url": "gs://b/x", "storage_options": options}
    audit = validate(StreamSettings, {"source": "x", "audit": written}).audit
    assert audit is not None
    assert audit.storage_options is not None
    assert audit.storage_options["token"] == str(tmp_path / "key.json")
    assert "hush" not in repr(audit)


def test_a_feeder_has_none(tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text('[datasets.a]\nsource = "x"\nbatch_size = 4\naudit = "log"\n')
    with pytest.raises(ConfigError, match=r"datasets\.a\.audit.*give audit to streamrec\.connect"):
        load_daemon(path)
