from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import validate
from streamrec.config.daemon import DaemonSettings
from streamrec.errors import ConfigError
from streamrec.feeder.operate.configuration import effective, faults, load
from streamrec.masking import HIDDEN

if TYPE_CHECKING:
    from pathlib import Path

RAGGED = {"kind": "ragged", "dtype": "int64"}


def daemon(server: dict[str, Any] | None = None, **dataset: Any) -> DaemonSettings:
    values = {"server": server or {}, "datasets": {"train": {"source": "shards-*", **dataset}}}
    return validate(DaemonSettings, values)


def check(settings: DaemonSettings) -> None:
    assert list(faults(settings.server, settings.datasets)) == []


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
        ({"listen": ["tcp://x:1/train"]}, {}, "must not name a dataset"),
        ({"listen": ["tcp://0.0.0.0:1"]}, {}, r"tcp://0\.0\.0\.0:1: .*insecure = true"),
        ({"listen": ["tcp://x:1"], "token": "t", "insecure": True}, {}, "token in plain TCP"),
        ({"tls": {"cert": "feeder.pem"}}, {}, r"server\.tls.*no address .* begins with tls://"),
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
    (fault,) = faults(settings.server, settings.datasets)
    assert re.search(words, fault)


def test_defaults_are_shown() -> None:
    plain = effective(daemon())
    assert plain["server"]["listen"] == ["tcp://127.0.0.1:7070"]
    assert plain["datasets"]["train"]["source"] == "shards-*"
    assert plain["datasets"]["train"]["shuffle_window"] == 256 << 20


def test_excluded_values_are_counted() -> None:
    """They may name persons."""
    values = {"user": ["alice", "bob"], "id": [7], "page": "s3://b/removed.txt"}
    plain = shown(exclude=values, index=True)["exclude"]
    assert plain == {"user": "2 values", "id": "1 value", "page": "s3://b/removed.txt"}
    assert shown(exclude=[["part-0.tfrecord", 3]])["exclude"] == [["part-0.tfrecord", 3]]


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
    (fault,) = faults(settings.server, settings.datasets)
    assert fault.startswith("datasets.train: the setting 'filter' names")


WRONG = """
[server]
listen = ["udp://x:1", "tcp://0.0.0.0:1"]
status = "localhost"

[datasets.good]
source = "x-*"
features.id = { dtype = "int46" }
features.text = { dtipe = "bytes" }
map = "absent:map"

[datasets.bad]
source = "s4://x"
batch_size = "64"

[datasets.pair.features]
context.id = { dtype = "int46" }
sequence.id = { kind = "ragged" }
"""


def test_all_faults_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMREC_SERVER_GRACE", "soon")
    path = tmp_path / "feeder.toml"
    path.write_text(WRONG)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    title, *lines = str(caught.value).splitlines()
    assert title == f"{path} has {len(lines)} faults:"
    for number, words in enumerate(
        [
            "STREAMREC_SERVER_GRACE: the setting 'server.grace' is 'soon'",
            "the setting 'datasets.bad.batch_size' is '64' but must be a valid integer",
            "the setting 'datasets.pair.source' is missing",
            "'udp://x:1' is not an address of a feeder",
            "the setting 'server.status': 'localhost' is not HOST:PORT",
            "datasets.good: feature 'id': no feature can have the dtype 'int46'",
            "datasets.good: feature 'text'",
            "datasets.good: the setting 'map' names",
            "datasets.bad: s4://x: there is no store",
        ]
    ):
        assert lines[number].startswith(f"  {words}")
    # A wrong setting could be the one that allows to listen at 0.0.0.0, and without its source a
    # dataset is none.
    assert len(lines) == 9


def test_an_override_is_checked_like_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text("[datasets.a]\nsource = 'x'\n")
    monkeypatch.setenv("STREAMREC_SERVER_LISTEN", "tcp://127.0.0.1:0, unix:///run/x.sock")
    assert load(str(path)).server.listen == ["tcp://127.0.0.1:0", "unix:///run/x.sock"]
    monkeypatch.setenv("STREAMREC_SERVER_LISTEN", "udp://x:1,tcp://x")
    with pytest.raises(ConfigError, match=r"2 faults:\n.*udp://x:1.*\n.*the port is missing"):
        load(str(path))
