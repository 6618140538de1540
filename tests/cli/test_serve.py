from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from typing import IO, TYPE_CHECKING, Any

import pytest

import streamrec
from streamrec import kernel
from streamrec.cli import serve
from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError
from streamrec.feeder.operate import daemon as daemon_module
from streamrec.feeder.operate import log_format
from streamrec.kernel import implementation
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


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["words", "JSON"])
def test_it_serves_although_nobody_reads_where(config: Path, form: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    socket = f"unix://{config.parent}/s"
    config.write_text(CONFIG.replace("tcp://127.0.0.1:0", socket))
    with started("serve", config, *form, stdout=writing) as process:
        os.close(writing)
        assert any(b"cannot be printed" in line for line in pipe(process.stderr))
        with streamrec.connect(f"{socket}#numbers", rank=0, world_size=1) as stream:
            assert len(next(stream)) == 20
        process.terminate()
        assert process.wait(100) == 0


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
        with urllib.request.urlopen(f"http://{bound['status']}/readyz", timeout=100) as answer:
            assert answer.status == 200
        (listen,) = bound["listen"]
        with streamrec.connect(f"{listen}/numbers", rank=0, world_size=1) as stream:
            ids = [int(number) for batch in stream for number in batch["id"]]
        assert sorted(ids) == list(range(60))

    def test_sigterm_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        daemon.terminate()
        assert daemon.wait(100) == 0
        assert pipe(daemon.stdout).read() == b""

    def test_sigint_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(100) == 0

    def test_the_end_of_standard_input_ends_it(self, daemon: subprocess.Popen[bytes]) -> None:
        where(daemon)
        pipe(daemon.stdin).close()
        assert daemon.wait(100) == 0

    def test_it_says_where_in_words(self, config: Path) -> None:
        with started("serve", config, stderr=subprocess.DEVNULL) as process:
            stdout = pipe(process.stdout)
            assert stdout.readline().startswith(b"streamrec serves numbers at tcp://127.0.0.1:")
            assert stdout.readline().startswith(
                b"status page, health and metrics at http://127.0.0.1:"
            )
            process.terminate()
            assert process.wait(100) == 0


@pytest.mark.parametrize(("name", "level"), [("native", "INFO"), ("python", "WARNING")])
def test_the_slow_kernel_is_a_warning_in_the_log(
    name: str, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel, "implementation", name)
    with caplog.at_level("INFO", "streamrec.feeder"):
        serve._log_beginning()
    (record,) = caplog.records
    assert record.levelname == level
    assert record.message.endswith(f"begins, with the {name} kernel")


def log_until(stream: IO[bytes], words: str) -> list[dict[str, Any]]:
    """Read the log, a JSON object a line, until a message has these words."""
    entries: list[dict[str, Any]] = []
    while not entries or words not in entries[-1]["message"]:
        line = stream.readline()
        assert line, entries
        entries.append(json.loads(line))
    return entries


def test_its_log_from_start_to_end(config: Path) -> None:
    """One process for all of it: each takes a second to start."""
    config.write_text(CONFIG.replace("[server]", '[server]\ntoken = "swordfish-swordfish"'))
    with started("serve", config, "--json") as process:
        (listen,) = where(process)["listen"]
        log = pipe(process.stderr)
        beginning, *entries = log_until(log, "listens at")
        assert beginning["message"] == (
            f"streamrec {streamrec.__version__} begins, with the {implementation} kernel"
        )
        assert listen in entries[-1]["message"]
        # A dataset is opened while the sockets are: it may be the first.
        while not (opened := [entry for entry in entries if "dataset" in entry]):
            entries += log_until(log, "the dataset is open: 3 shards")
        assert [entry["dataset"] for entry in opened] == ["numbers"]

        with pytest.raises(streamrec.FeederRefused):
            next(iter(streamrec.connect(f"{listen}/numbers", rank=0, world_size=1, token="no")))
        refused = log_until(log, "a client is refused")[-1]
        assert refused["level"] == "warning"
        assert refused["peer"].startswith("127.0.0.1:")

        stream = streamrec.connect(
            f"{listen}/numbers", rank=0, world_size=1, token="swordfish-swordfish"
        )
        with stream:
            assert sum(len(batch) for batch in stream) == 60
        gone = log_until(log, "a client has gone")[-1]
        assert (gone["rank"], gone["world_size"], gone["batches"]) == (0, 1, 3)
        assert gone["bytes"] > 0

        more = config.read_text().replace('"swordfish-swordfish"', '"marlin-marlin-marlin"')
        config.write_text(f"{more}\n[datasets.more]\nsource = '{DATA}/numbers-*'\n")
        process.send_signal(signal.SIGHUP)
        messages = [entry["message"] for entry in log_until(log, "dataset is open")]
        assert "reload: the tokens have changed, for new clients" in messages
        assert "reload: the dataset 'more' is added, and being opened" in messages
        connected = streamrec.connect(
            f"{listen}/more", rank=0, world_size=1, token="marlin-marlin-marlin"
        )
        with connected as stream:
            assert len(list(stream)) == 60

        config.write_text("[server")
        process.send_signal(signal.SIGHUP)
        assert "not TOML" in log_until(log, "nothing was reloaded")[-1]["message"]

        process.send_signal(signal.SIGUSR1)
        assert "statistics" in log_until(log, "<Feeder serving")[-1]["message"]
        log_until(log, "thread MainThread")

        process.terminate()
        assert process.wait(100) == 0
        rest = log.read()
        assert json.loads(rest.splitlines()[-1])["message"] == "has ended"
        assert b"drains: " in rest
        assert b"swordfish" not in rest


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

    def test_what_the_datasets_hold(self, config: Path) -> None:
        absent = f'[datasets.absent]\nsource = "{DATA}/none-*"\n'
        outcome = cli("serve", config, "--check-config", "--open")
        assert (outcome.code, outcome.err) == (0, "")
        opened = outcome.object["datasets"]["numbers"]["opened"]
        assert (opened["shards"], len(opened["first"])) == (3, 3)
        assert opened["bytes"] == sum(path.stat().st_size for path in DATA.glob("numbers-*"))
        assert opened["fingerprint"]["shards"] == 3
        config.write_text(CONFIG + absent)
        outcome = cli("serve", config, "--check-config", "--open")
        assert_one_sentence(outcome, 1, "datasets.absent", "none-*")
        assert outcome.object["datasets"]["numbers"]["opened"] == opened
        assert "none-*" in outcome.object["datasets"]["absent"]["opened"]["error"]

    def test_a_dataset_that_contradicts_its_shards(self, config: Path) -> None:
        config.write_text(CONFIG + "lanes = 3\nshuffle = true\nshuffle_window = '1TiB'\n")
        outcome = cli("serve", config, "--check-config", "--open")
        assert_one_sentence(outcome, 2, "datasets.numbers", "memory")

    def test_wrong_tokens_hide_no_wrong_dataset(self, config: Path) -> None:
        absent = f'[datasets.absent]\nsource = "{DATA}/none-*"\n'
        config.write_text(CONFIG.replace("[server]", '[server]\ntokens = ["absent"]') + absent)
        outcome = cli("serve", config, "--check-config", "--open")
        assert_one_sentence(
            outcome, 2, f"server.tokens: {config.parent}/absent", "datasets.absent", "none-*"
        )
        assert outcome.object["datasets"]["numbers"]["opened"]["shards"] == 3

    def test_open_alone_means_nothing(self, config: Path) -> None:
        assert_one_sentence(cli("serve", config, "--open"), 2, "--check-config")

    def test_all_faults_are_named(self, config: Path) -> None:
        config.write_text(CONFIG.replace("[datasets.numbers]", "[dataset.numbers]"))
        outcome = cli("serve", config, "--check-config")
        assert outcome.code == 2
        title, *faults = outcome.err.splitlines()
        assert title == f"streamrec: error: {config} has 2 faults:"
        assert "the setting 'datasets' is missing" in faults[0]
        assert "'dataset'; did you mean 'datasets'?" in faults[1]


class TestRefusals:
    def test_a_dataset_without_shards_is_named(self, config: Path) -> None:
        config.write_text(CONFIG.replace("numbers-*", "none-*"))
        with started("serve", config, "--json", stderr=subprocess.DEVNULL) as process:
            bound = where(process)
            assert "none-*" in bound["failing"]["numbers"]
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{bound['status']}/readyz", timeout=100)
            with caught.value as answer:
                assert answer.code == 503
                assert b"none-*" in answer.read()
            process.terminate()
            assert process.wait(100) == 0

    def test_features_that_are_not_there(self, config: Path) -> None:
        config.write_text(CONFIG.replace('{ id = { dtype = "int64" } }', '"infer"'))
        config.write_text(config.read_text().replace("numbers-*", "shards.json"))
        outcome = in_process("serve", config)
        assert outcome.code == 1
        assert outcome.err.splitlines()[-1].startswith("streamrec: error: ")
        assert "Traceback" not in outcome.err

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


def test_all_is_logged_before_the_error_is_told(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fail(*_: object) -> None:
        raise ConfigError("it cannot serve")

    monkeypatch.setattr(daemon_module, "run", fail)
    monkeypatch.setattr(log_format, "flush", lambda: told.append("log"))
    monkeypatch.setattr(log_format, "configure", lambda _: None)
    with pytest.raises(ConfigError):
        serve.run(load_daemon(config, {}), lambda _: None, False, lambda: load_daemon(config, {}))
    assert told == ["log"]
