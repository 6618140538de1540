from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from streamrec.config import StreamSettings, validate
from streamrec.config.audit import AuditSettings
from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError

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
def test_every_form(written: Any, url: str, every: float) -> None:
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
