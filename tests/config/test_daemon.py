from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.config import DatasetSettings, StreamSettings
from streamrec.config.daemon import DaemonSettings, ServedSettings, load_daemon
from streamrec.config.server_settings import ServerSettings, TlsSettings
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, text: str) -> Path:
    path = directory / "streamrec.toml"
    path.write_text(text)
    return path


def test_a_daemon_file(tmp_path: Path) -> None:
    settings = load_daemon(
        write(
            tmp_path,
            """
            [server]
            listen = ["tcp://127.0.0.1:0"]
            token = "secret"

            [datasets.train]
            source = "s3://bucket/train-*"
            batch_size = 8
            shuffle_window = "1MiB"
            """,
        )
    )
    assert settings.datasets["train"].shuffle_window == 1 << 20
    assert settings.server.status == "127.0.0.1:7071"
    assert "secret" not in repr(settings)


def test_a_file_of_an_editor_on_windows(tmp_path: Path) -> None:
    lines = "\ufeff[datasets.train]", 'source = "train-*"', "batch_size = 8", ""
    path = tmp_path / "streamrec.toml"
    path.write_bytes("\r\n".join(lines).encode())
    assert load_daemon(path).datasets["train"].batch_size == 8


def test_the_status_port_can_be_switched_off(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nstatus=''\n[datasets.a]\nsource='x'")
    assert load_daemon(path).server.status is None


def test_an_empty_collector_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\ntraces=''\n[datasets.a]\nsource='x'")
    assert load_daemon(path).server.traces is None


@pytest.mark.parametrize(
    "address", ["c:4318", "grpc://c", "http://", "http://u:pass@c", "http://c?a=pass"]
)
def test_a_collector_is_an_address_without_credentials(tmp_path: Path, address: str) -> None:
    path = write(tmp_path, f"[server]\ntraces='{address}'\n[datasets.a]\nsource='x'")
    with pytest.raises(ConfigError, match=r"'server.traces'.* http://host:port") as caught:
        load_daemon(path)
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[datasets.a]\nsource='x'\nsufle=1",
            "no setting 'datasets.a.sufle'; did you mean 'shuffle'",
        ),
        ("[server]\nlisen=[]\n[datasets.a]\nsource='x'", "'server.lisen'; did you mean 'listen'"),
        ("[datasets]", "'datasets'"),
        ("[server", "not TOML"),
        ("server = 255\n[datasets.a]\nsource='x'", "'server' is 255"),
        ("server = []\n[datasets]\na = 3\nb = {source='x'}", "'datasets.a' is 3"),
        ("[server]\nidle_timeout=0\n[datasets.a]\nsource='x'", "'server.idle_timeout' is 0"),
        ("[server]\nidle_timeout=inf\n[datasets.a]\nsource='x'", "less than or equal to 1"),
        ("[severs]\n[datasets.a]\nsource='x'", "no setting 'severs'; did you mean 'server'"),
    ],
)
def test_a_wrong_daemon_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_daemon(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    ['batch_size="64"', "batch_size=64.0", "shuffle=1", "stall_timeout='3'", "pack={length='8'}"],
)
def test_a_text_is_no_number(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        load_daemon(write(tmp_path, f"[datasets.a]\nsource='x'\n{setting}"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ('memory_budget="64MiB"', 64 << 20),
        ("memory_budget=67108864", 64 << 20),
        ("epochs=inf\nsteps_per_epoch=2", None),
        ("stall_timeout=3", 3.0),
        ("compression='GZIP'", "gzip"),
    ],
)
def test_texts_that_are_meant_stay(tmp_path: Path, setting: str, value: object) -> None:
    settings = load_daemon(write(tmp_path, f"[datasets.a]\nsource='x'\n{setting}"))
    assert getattr(settings.datasets["a"], setting.partition("=")[0]) == value


def test_the_stages_of_a_mix_are_lists_in_a_file(tmp_path: Path) -> None:
    mix = "source={a='x', b='y'}\nweights=[[0, {a=1, b=2}]]\nsteps_per_epoch=2"
    settings = load_daemon(write(tmp_path, f"[datasets.a]\n{mix}"))
    assert settings.datasets["a"].weights == [(0, {"a": 1.0, "b": 2.0})]


def test_faults_have_a_line_each(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\ngrace=-1\n[datasets.a]\nsource='x'\nsufle=1")
    with pytest.raises(ConfigError) as caught:
        load_daemon(path, {"STREAMREC_SERVER_TOKN": "x"}, lambda server, found, _: map(str, found))
    title, *lines = str(caught.value).splitlines()
    assert title == f"{path} has 4 faults:"
    assert "'STREAMREC_SERVER_TOKEN'" in lines[0]
    assert "'server.grace' is -1" in lines[1]
    assert "'shuffle'" in lines[2]
    assert lines[3].strip() == "a"


def test_checks_see_the_settings_that_are_right(tmp_path: Path) -> None:
    text = "[server]\n{}\nstatus='x'\n[datasets.a]\nsource='x'\nbatch_size='64'\n[datasets.b]"
    server = ServerSettings(status="x")
    seen: list[object] = []

    def check(*parts: object) -> list[str]:
        seen[:] = parts
        return []

    for setting, is_right in [("grace=-1", False), ("", True)]:
        path = write(tmp_path, text.format(setting))
        with pytest.raises(ConfigError):
            load_daemon(path, {}, check)
        assert seen == [server, {"a": ServedSettings(source=f"{tmp_path}/x")}, is_right]


def test_a_variable_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\ngrace=1\n[datasets.a]\nsource='x'")
    variables = {"STREAMREC_SERVER_GRACE": "2", "STREAMREC_SERVER_TOKEN": "12"}
    settings = load_daemon(path, {**variables, "STREAMREC_SERVER_LOG_LEVEL": "DEBUG"})
    assert settings.server.grace == 2
    assert settings.server.log_level == "debug"
    assert settings.server.token is not None
    assert settings.server.token.get_secret_value() == "12"


@pytest.mark.parametrize("name", ["a\\n2026 forged", "", "\\u001b[31m"])
def test_a_dataset_has_a_name_that_can_be_shown(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f'[datasets."{name}"]\nsource="x"')
    with pytest.raises(ConfigError, match="has a dataset named"):
        load_daemon(path)


def test_a_missing_daemon_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_daemon(tmp_path / "none.toml")


def test_who_may_read(tmp_path: Path) -> None:
    text = """
    [server]
    tls = { cert = "feeder.pem", key = "feeder.key" }
    tokens = ["/run/secrets/all"]
    [datasets.a]
    source = "x"
    tokens = ["/run/secrets/a"]
    """
    variables = {"STREAMREC_SERVER_TLS__CLIENT_CA": "ca.pem"}
    settings = load_daemon(write(tmp_path, text), variables)
    assert settings.server.tls == TlsSettings(
        cert=f"{tmp_path}/feeder.pem", key=f"{tmp_path}/feeder.key", client_ca="ca.pem"
    )
    assert settings.server.tokens == ["/run/secrets/all"]
    assert settings.datasets["a"].tokens == ["/run/secrets/a"]


def test_relative_paths_are_those_of_the_files_directory(tmp_path: Path) -> None:
    (tmp_path / "run[1]").mkdir()
    (tmp_path / "run[1]/token.json").write_text("{}")
    text = """
    [datasets.a]
    source = ["x-*", "/y", "s3://b/z", "file://v"]
    index = "x.streamrec-index"
    quarantine = "bad"
    exclude = "removed.jsonl"
    on_corrupt = "quarantine"
    corrupt_budget = 1
    cache = "kept"
    tokens = ["t"]
    storage_options = { token = "token.json", ca_bundle = "none.pem" }
    [datasets.b]
    source = "x"
    cache = "4GiB"
    [datasets.c]
    source = "x"
    cache = { folder = "kept", of = "batches" }
    """
    here, escaped = f"{tmp_path}/run[1]", f"{tmp_path}/run[[]1[]]"
    datasets = load_daemon(write(tmp_path / "run[1]", text)).datasets
    a = datasets["a"]
    assert a.source == [f"{escaped}/x-*", "/y", "s3://b/z", f"file://{escaped}/v"]
    assert (a.index, a.quarantine) == (f"{here}/x.streamrec-index", f"{here}/bad")
    assert a.exclude == f"{here}/removed.jsonl"
    assert a.tokens == [f"{here}/t"]
    assert a.storage_options == {"token": f"{here}/token.json", "ca_bundle": "none.pem"}
    folders = [one.cache.folder for one in datasets.values() if one.cache is not None]
    assert folders == [f"{here}/kept", None, f"{here}/kept"]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("token = ''", "'server.token' is str but must be a value with at least 1 item"),
        ("tls = {}", "'server.tls.cert' is missing"),
        ("tls = {cert='a', keys='b'}", "no setting 'server.tls.keys'; did you mean 'key'"),
        ("tls = 'a.pem'", "'server.tls' is 'a.pem' but must be"),
        ("tokens = ['']", "'server.tokens' is '' but must be a string with at least 1 character"),
    ],
)
def test_wrong_settings_of_who_may_read(server: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"[server]\n{server}\n[datasets.a]\nsource='x'")
    with pytest.raises(ConfigError, match=words):
        load_daemon(path)


def test_daemon_settings_have_the_same_names_as_a_streams() -> None:
    assert set(DatasetSettings.model_fields) <= set(StreamSettings.model_fields)
    assert issubclass(ServedSettings, DatasetSettings)
    assert DaemonSettings.model_fields["datasets"].annotation == dict[str, ServedSettings]
