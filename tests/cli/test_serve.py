from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from typing import IO, TYPE_CHECKING, Any

import pytest

import streamrec
from tests.cli.support import DATA, assert_one_sentence, in_process, started
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = f"""
[server]
listen = ["tcp://127.0.0.1:0"]
status = "127.0.0.1:0"
grace = 5

[datasets.numbers]
source = "{DATA}/numbers-*"
batch_size = 20
features = {{ id = {{ dtype = "int64" }} }}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "feeder.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def daemon(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ("serve", config, "--json", "--until-eof")
    with started(*arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def where(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pipe(process.stdout).readline())
    return found


class TestServing:
    def test_clients_and_health(self, daemon: subprocess.Popen[bytes]) -> None:
        bound = where(daemon)
        with urllib.request.urlopen(f"http://{bound['status']}/readyz", timeout=30) as answer:
            assert answer.status == 200
        (listen,) = bound["listen"]
        with streamrec.connect(f"{listen}/numbers", rank=0, world_size=1) as stream:
            ids = [int(number) for batch in stream for number in batch["id"]]
        assert sorted(ids) == list(range(60))

    def test_sigterm_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        daemon.terminate()
        assert daemon.wait(30) == 0
        assert pipe(daemon.stdout).read() == b""

    def test_sigint_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(30) == 0

    def test_the_end_of_standard_input_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        pipe(daemon.stdin).close()
        assert daemon.wait(30) == 0

    def test_it_says_where_in_words(self, config: Path) -> None:
        with started("serve", config, stderr=subprocess.DEVNULL) as process:
            stdout = pipe(process.stdout)
            assert stdout.readline().startswith(b"streamrec serves numbers at tcp://127.0.0.1:")
            assert stdout.readline().startswith(b"health and metrics at http://127.0.0.1:")
            process.terminate()
            assert process.wait(30) == 0


class TestCheckConfig:
    def test_the_effective_configuration(self, config: Path) -> None:
        outcome = in_process("serve", config, "--check-config")
        assert (outcome.code, outcome.err) == (0, "")
        dataset = outcome.object["datasets"]["numbers"]
        assert (dataset["batch_size"], dataset["epochs"], dataset["shuffle"]) == (20, 1, False)
        assert outcome.object["server"]["grace"] == 5

    def test_it_shows_no_secrets(self, config: Path) -> None:
        secrets = 'storage_options = { secret = "swordfish" }\n'
        config.write_text(CONFIG.replace("[server]", '[server]\ntoken = "swordfish"') + secrets)
        outcome = cli("serve", config, "--check-config")
        assert outcome.code == 0
        assert "swordfish" not in outcome.out
        assert outcome.out.count("**********") == 2

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("batch_size", "batch_sise", ("'datasets.numbers.batch_sise'", "'batch_size'?")),
            ("grace = 5", "grace = -5", ("'server.grace'", "-5")),
            ("listen", "lissten", ("'server.lissten'", "'listen'?")),
            ('"int64"', '"int46"', ("feature 'id'", "'int46'", "'int64'?")),
            ("dtype", "dtipe", ("feature 'id'", "'dtipe'", "'dtype'?")),
            ('source = "', 'source = "s4://', ("datasets.numbers", "'s4'", "'s3'?")),
            ("tcp://", "udp://", ("'udp'",)),
            ("[server]", "[server", ("not TOML",)),
        ],
    )
    def test_refusals(self, config: Path, old: str, new: str, words: tuple[str, ...]) -> None:
        config.write_text(CONFIG.replace(old, new, 1))
        assert_one_sentence(cli("serve", config, "--check-config"), 2, *words)
        assert_one_sentence(cli("serve", config), 2, *words)

    def test_all_faults_are_named(self, config: Path) -> None:
        config.write_text(CONFIG.replace("[datasets.numbers]", "[dataset.numbers]"))
        outcome = cli("serve", config, "--check-config")
        assert outcome.code == 2
        title, *faults = outcome.err.splitlines()
        assert title == f"streamrec: error: {config} has 2 faults:"
        assert "the setting 'datasets' is missing" in faults[0]
        assert "'dataset'; did you mean 'datasets'?" in faults[1]


class TestRefusals:
    def test_no_such_file(self, tmp_path: Path) -> None:
        assert_one_sentence(cli("serve", tmp_path / "none.toml"), 2, "none.toml", "readable")

    def test_a_port_that_is_taken(
        self, config: Path, daemon: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        (taken,) = where(daemon)["listen"]
        other = tmp_path / "other.toml"
        other.write_text(CONFIG.replace("tcp://127.0.0.1:0", taken))
        outcome = in_process("serve", other)
        assert outcome.code == 2
        assert taken.removeprefix("tcp://") in outcome.err.splitlines()[-1]
