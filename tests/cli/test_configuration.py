from __future__ import annotations

from typing import Any

import pytest

from streamrec.cli.configuration import check, effective
from streamrec.config import DaemonSettings, validate
from streamrec.errors import ConfigError
from streamrec.masking import HIDDEN

RAGGED = {"kind": "ragged", "dtype": "int64"}


def daemon(server: dict[str, Any] | None = None, **dataset: Any) -> DaemonSettings:
    values = {"server": server or {}, "datasets": {"train": {"source": "shards-*", **dataset}}}
    return validate(DaemonSettings, values)


def shown(**dataset: Any) -> Any:
    return effective(daemon(**dataset))["datasets"]["train"]


def test_what_is_right_passes() -> None:
    features = {"id": {"dtype": "int64"}, "image": {"kind": "varlen", "dtype": "bytes"}}
    check(daemon({"listen": ["tcp://[::1]:0", "unix:///run/x.sock"]}, features=features))
    check(daemon({"status": None}))
    check(daemon({"status": "0.0.0.0:7071"}))
    check(daemon({"listen": ["tcp://[::]:1", "tcp://feeder:1"], "insecure": True}))
    steps = {"frames": {"kind": "sequence", "shape": [2], "dtype": "float32"}}
    check(daemon(features={"context": features, "sequence": steps}))


@pytest.mark.parametrize(
    ("server", "dataset", "words"),
    [
        ({"listen": ["udp://x:1"]}, {}, "udp://x:1"),
        ({"listen": ["tcp://x:1/train"]}, {}, "names no dataset"),
        ({"listen": ["tcp://0.0.0.0:1"]}, {}, r"tcp://0\.0\.0\.0:1: .*insecure = true"),
        ({"listen": ["tcp://x:1"], "token": "t", "insecure": True}, {}, "token in plain TCP"),
        ({"status": "localhost"}, {}, "port is missing"),
        ({}, {"source": "s4://bucket/x"}, "datasets.train: s4://bucket/x.*did you mean 's3'"),
        ({}, {"source": "x-{9..1}"}, "backwards"),
        (
            {},
            {"features": {"id": {"dtype": "int46"}}},
            "feature 'id': no feature can have the dtype 'int46'.*'int64'",
        ),
        (
            {},
            {"features": {"id": {"dtype": "int64"}, "r": {**RAGGED, "value_key": "id"}}},
            "feature 'id' is needed as fixed int64 and as varlen int64",
        ),
        (
            {},
            {"features": {"context": {"id": {"dtype": "int64"}}, "sequence": {"id": RAGGED}}},
            "feature 'id': the context and the sequence both give a column",
        ),
        ({}, {"features": {"id": {"dtipe": "int64"}}}, "did you mean 'dtype'"),
    ],
)
def test_what_is_wrong_does_not(
    server: dict[str, Any], dataset: dict[str, Any], words: str
) -> None:
    settings = daemon(server, **dataset)
    with pytest.raises(ConfigError, match=words):
        check(settings)


def test_defaults_are_shown() -> None:
    plain = effective(daemon())
    assert plain["server"]["listen"] == ["tcp://127.0.0.1:7070"]
    assert plain["datasets"]["train"]["source"] == "shards-*"
    assert plain["datasets"]["train"]["shuffle_window"] == 256 << 20


def test_the_token_is_hidden() -> None:
    plain = effective(daemon({"token": "swordfish"}))
    assert plain["server"]["token"] == HIDDEN
    assert "swordfish" not in str(plain)


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "secret",
        "token",
        "password",
        "aws_secret_access_key",
        "sasl_password",
        "sessionToken",
        "headers",
        "connection_string",
    ],
)
def test_secrets_of_the_store_are_hidden(name: str) -> None:
    options = {name: "swordfish", "client_kwargs": {"deep": [{name: "swordfish"}]}}
    assert "swordfish" not in str(shown(storage_options=options))


def test_what_is_no_secret_is_shown() -> None:
    options = {"endpoint_url": "http://host:9000", "anon": False, "key": None, "retries": [1, "x"]}
    assert shown(storage_options=options)["storage_options"] == options


def test_credentials_in_urls_are_hidden() -> None:
    url = "https://user:swordfish@host/shard?signature=swordfish"
    assert shown(source=url)["source"] == "https://host/shard?..."
    assert "swordfish" not in str(shown(source=[url], storage_options={"endpoint_url": url}))
    kept = {"on_corrupt": "quarantine", "corrupt_budget": 1, "quarantine": url, "index": url}
    assert "swordfish" not in str(shown(**kept))


def test_functions_that_do_not_exist_are_named() -> None:
    settings = validate(
        DaemonSettings, {"datasets": {"train": {"source": "x", "filter": "absent:keep"}}}
    )
    with pytest.raises(ConfigError, match=r"datasets.train: the setting 'filter' names"):
        check(settings)
