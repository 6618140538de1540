from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.cli.serve import run
from streamrec.config import named_files
from streamrec.config.daemon import load_daemon
from streamrec.config.named_files import (
    check_file,
    check_option_files,
    check_variables,
    read_small_file,
)
from streamrec.errors import ConfigError
from streamrec.feeder.access.access import client_context, load_authorities, load_pair
from streamrec.flow.child_process import ChildProcess
from streamrec.measure.figures import read_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


DATA = b"[datasets.a]\nsource = 'x'\n"


class Writer(logging.Handler):
    """A writer that comes when the log says that somebody is waited for."""

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__()
        self._path, self._data = path, data
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self._path.write_bytes(self._data)


@pytest.mark.parametrize("size", [0, 1, 100, 70_000])
def test_a_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert read_small_file(path, size) == b"x" * size
    if size:
        with pytest.raises(OSError, match=f"more than {size - 1} bytes"):
            read_small_file(path, size - 1)


@pytest.mark.parametrize("size", [0, 100, 200_000])
def test_a_pipe_is_read_to_its_end(size: int) -> None:
    """As the shell gives it for ``<(...)``."""
    receiver, sender = os.pipe()

    def write() -> None:
        with os.fdopen(sender, "wb") as file:
            file.write(b"x" * size)

    thread = threading.Thread(target=write)
    thread.start()
    assert read_small_file(f"/dev/fd/{receiver}", 1 << 20) == b"x" * size
    thread.join()
    os.close(receiver)


def test_a_fifo_that_nobody_writes_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_files, "PATIENCE", 1)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = Writer(path, DATA)
    named_files.log.addHandler(writer)
    try:
        assert load_daemon(path).datasets["a"].source == str(tmp_path / "x")
    finally:
        named_files.log.removeHandler(writer)
    assert writer.said == [f"{path} has nothing to read yet; waiting for somebody to write it"]


def test_a_device_without_an_end_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero cannot be read .*more than 1048576 bytes"):
        load_daemon(Path("/dev/zero"))


S3, GCS = "s3://bucket/x.tfrecord", "gs://bucket/x.tfrecord"
ODD = "which is a FIFO or a device; name a regular file"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[fifo, device])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path of what never ends."""
    make: Callable[[Path], None] = request.param
    make(tmp_path / "odd")
    return str(tmp_path / "odd")


def test_what_would_be_waited_for_is_refused(odd: str) -> None:
    with pytest.raises(ConfigError, match=f"x names {odd}, {ODD}"):
        check_file(odd, "x")


@pytest.mark.parametrize("name", [os.devnull, "", "gone", "\0", "x" * 5000, "."])
def test_anything_else_is_left_to_who_opens_it(name: str) -> None:
    check_file(name, "x")


def test_options_are_checked_at_every_depth(odd: str) -> None:
    for options in ({"verify": odd}, {"client_kwargs": {"verify": Path(odd)}}, {"a": ["x", odd]}):
        with pytest.raises(ConfigError, match=f"storage_options' '(verify|a)' names {odd}"):
            check_option_files(options)
    check_option_files({"token": None, "secret": "x" * 5000, "data": b"x", "n": 1, "s": ("x",)})


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("", "SSL_CERT_FILE"),
        (S3, "AWS_CONFIG_FILE"),
        ("zip://x::S3://bucket/a.zip", "AWS_SHARED_CREDENTIALS_FILE"),
        (GCS, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("https://host/x", "NETRC"),
    ],
)
def test_variables(url: str, variable: str, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, odd)
    with pytest.raises(ConfigError, match=f"^{variable} names {odd}, {ODD}"):
        check_variables(url)
    monkeypatch.setenv(variable, os.devnull)
    check_variables(url)


def test_variables_of_another_store_do_not_matter(
    odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", odd)
    check_variables(GCS)


def reading(url: str, options: Mapping[str, Any]) -> None:
    list(sr.open(url, storage_options=options, engine="thread"))


def writing(url: str, options: Mapping[str, Any]) -> None:
    with sr.TFRecordWriter(url, storage_options=options) as writer:
        writer.write(b"x")


class TestStores:
    """No store waits for a file that its options, the environment or another file names."""

    @pytest.fixture
    def odd(self, tmp_path: Path) -> str:
        fifo(tmp_path / "odd")
        return str(tmp_path / "odd")

    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize(
        ("url", "name"),
        [
            (S3, "ca_bundle"),
            (S3, "config_kwargs"),
            (GCS, "token"),
            (GCS, "verify"),
        ],
    )
    def test_options(self, way: Any, url: str, name: str, odd: str) -> None:
        value = {"client_cert": odd} if name == "config_kwargs" else odd
        with pytest.raises(ConfigError, match=ODD):
            way(url, {name: value})

    def test_options_of_http(self, odd: str) -> None:
        with pytest.raises(ConfigError, match=ODD):
            reading("https://127.0.0.1:1/x", {"verify": odd})

    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize(
        ("url", "variable"),
        [
            (S3, "SSL_CERT_FILE"),
            (S3, "AWS_SHARED_CREDENTIALS_FILE"),
            (S3, "AWS_CONFIG_FILE"),
            (S3, "AWS_WEB_IDENTITY_TOKEN_FILE"),
            (GCS, "GOOGLE_APPLICATION_CREDENTIALS"),
        ],
    )
    def test_variables(
        self, way: Any, url: str, variable: str, odd: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, odd)
        with pytest.raises(ConfigError, match=f"{variable} names {odd}, {ODD}"):
            way(url, {})

    def test_the_engine_process(self, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", odd)
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE names {odd}, {ODD}"):
            list(sr.open(S3))

    @pytest.mark.parametrize("way", [reading, writing])
    @pytest.mark.parametrize("name", ["ca_bundle", "web_identity_token_file"])
    def test_files_of_a_profile(
        self, way: Any, name: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "config").write_text(f"[profile lab]\n{name} = {odd}\nrole_arn = x\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        with pytest.raises(ConfigError, match=f"'{name}' in AWS's configuration names {odd}"):
            way(S3, {"profile": "lab"})

    @pytest.mark.parametrize("way", [reading, writing])
    def test_a_source_of_google_s_credentials(self, way: Any, odd: str, tmp_path: Path) -> None:
        path = tmp_path / "credentials.json"
        path.write_text(
            json.dumps({"type": "external_account", "credential_source": {"file": odd}})
        )
        with pytest.raises(ConfigError, match=f"the credential_source in {path} names {odd}"):
            way(GCS, {"token": str(path)})


class TestFeeders:
    """Neither end of a feeder's connection waits for a PEM file."""

    def test_clients(self, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for files in ({"ca": odd}, {"cert": odd}, {"cert": __file__, "key": odd}):
            with pytest.raises(ConfigError, match=ODD):
                client_context(files)
        monkeypatch.setenv("SSL_CERT_FILE", odd)
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE names {odd}"):
            client_context({})

    def test_daemons(self, odd: str) -> None:
        context: Any = None  # is not asked
        with pytest.raises(ConfigError, match=f"server.tls names {odd}"):
            load_pair(context, odd, None, "server.tls")
        with pytest.raises(ConfigError, match=f"client_ca names {odd}"):
            load_authorities(context, odd, "server.tls.client_ca")


def test_other_processes(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the demo and of bench's simulations."""
    monkeypatch.setenv("SSL_CERT_FILE", odd)
    with pytest.raises(ConfigError, match=f"SSL_CERT_FILE names {odd}"):
        ChildProcess("store", ["streamrec.devstore"], tmp_path / "log")


def test_serve(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", odd)
    settings: Any = None  # are not looked at
    with pytest.raises(ConfigError, match=f"SSL_CERT_FILE names {odd}"):
        run(settings, settings, False, settings)


def test_figures_of_a_bench(odd: str) -> None:
    with pytest.raises(ConfigError, match=ODD):
        read_figures(odd)


@pytest.mark.parametrize(
    "form", ["zip://*.tfrecord::{}", "zip://x::file://{}", "simplecache::zip://x::{}"]
)
def test_an_archive(odd: str, form: str) -> None:
    with pytest.raises(ConfigError, match=f"the chain names {odd}, {ODD}"):
        list(sr.open(form.format(odd), engine="thread"))
