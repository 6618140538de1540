from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
import trustme
from click.testing import CliRunner

from streamrec.devstore.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start devstore; yield the process and its first line, and kill it in the end."""
    command = [sys.executable, "-m", "streamrec.devstore", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=30) as answer:
        data: bytes = answer.read()
    return data


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_a_directory_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/k").write_bytes(b"data")
    with running("--root", str(tmp_path), "--anonymous", "--warm") as (process, line):
        assert line["pid"] == process.pid
        assert fetch(line["endpoint"] + "/b/k") == b"data"
        process.send_signal(number)
        assert process.wait(100) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_root_that_is_not_a_directory_is_told_at_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["--root", str(tmp_path / name), "--until-eof"], input="")
    assert done.exit_code == 2
    assert f"{tmp_path / name}" in done.output.replace("\n", "")
    assert "--root" in done.output
    assert "endpoint" not in done.output


def test_it_ends_with_its_standard_input() -> None:
    with running("--until-eof") as (process, _):
        assert process.stdin is not None
        process.stdin.write("ignored\n")
        process.stdin.flush()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(100) == 0


def test_all_settings_reach_the_store(tmp_path: Path) -> None:
    rules = tmp_path / "faults.json"
    rules.write_text('[{"path": "teapot", "status": 418}]')
    arguments = ["--latency=0.001", "--bandwidth=60e6", "--key=me", "--secret=mine"]
    arguments += ["--jitter=0.3", "--link=1e9", "--page-latency=0.01", "--seed=7"]
    arguments += ["--request-rate=1", "--connections=9"]
    with running(*arguments, f"--faults={rules}") as (_, line):
        with pytest.raises(HTTPError, match="418"):
            fetch(line["endpoint"] + "/teapot")
        for status in ("403", "503"):
            with pytest.raises(HTTPError, match=status):
                fetch(line["endpoint"] + "/other")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Expecting"),
        ("{}", "a list of JSON objects"),
        ('[{"statsu": 503}]', "did you mean 'status'"),
    ],
)
def test_wrong_faults_end_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    rules = tmp_path / "faults.json"
    rules.write_text(text)
    result = CliRunner().invoke(main, ["--faults", str(rules)])
    assert result.exit_code == 1
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("option", ["--latancy=1", "--link=0", "--jitter=-1", "--connections=0"])
def test_an_unknown_option_or_a_wrong_number_is_wrong_usage(option: str) -> None:
    assert CliRunner().invoke(main, [option]).exit_code == 2


def test_two_backends_are_refused(tmp_path: Path) -> None:
    (tmp_path / "recipes").write_text("{}")
    both = ["--root", str(tmp_path), "--synthetic", f"{tmp_path}/recipes"]
    result = CliRunner().invoke(main, both)
    assert result.exit_code == 2
    assert "give one of them" in result.output


def test_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = tmp_path / "server.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/k").write_bytes(b"data")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with running("--root", str(tmp_path), "--anonymous", "--tls", str(pem)) as (_, line):
        assert line["endpoint"].startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{line['endpoint']}/b/k", timeout=30, context=trusting) as got:
            assert got.read() == b"data"


def test_certificate_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["--tls", "/none.pem"])
    assert result.exit_code == 1
    assert "No such file" in result.output
