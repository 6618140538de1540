from __future__ import annotations

import errno
import json
import os
import signal
from typing import TYPE_CHECKING

import click
import pytest

import streamrec as sr
from streamrec.cli.bench import BranchingCommand
from streamrec.measure.capacity import CapacityPlan
from streamrec.measure.figures import Figures
from tests.cli.support import assert_one_sentence, environment, in_process, started
from tests.cli.support import streamrec as cli
from tests.measure.samples import figures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@click.command(cls=BranchingCommand, invoke_without_command=True)
@click.argument("places", nargs=-1)
@click.option("--often", is_flag=True)
def look(places: tuple[str, ...], *, often: bool) -> tuple[object, ...]:
    return "look", places, often


@look.command()
@click.argument("one")
@click.option("--closely", is_flag=True)
def at(one: str, *, closely: bool) -> tuple[object, ...]:
    return "at", one, closely


def ran(*arguments: str) -> object:
    return look.main(arguments, prog_name="look", standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ("look", (), False)),
        (("a", "--often", "b"), ("look", ("a", "b"), True)),
        (("a", "at"), ("look", ("a", "at"), False)),
        (("./at",), ("look", ("./at",), False)),
        (("at", "a"), ("at", "a", False)),
        (("at", "--closely", "at"), ("at", "at", True)),
    ],
)
def test_the_command_or_one_beneath_it(arguments: tuple[str, ...], expected: object) -> None:
    assert ran(*arguments) == expected


@pytest.mark.parametrize("arguments", [("--often", "at", "a"), ("--", "at", "a")])
def test_a_name_behind_an_option_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError, match=r"'at' is a command, .* write `look at ...`"):
        ran(*arguments)


@pytest.mark.parametrize("arguments", [("at", "a", "--often"), ("a", "--closely")])
def test_options_are_those_of_the_command_that_runs(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.NoSuchOption):
        ran(*arguments)


def test_the_path_of_a_command_beneath_has_no_arguments_of_the_one_above() -> None:
    with pytest.raises(click.UsageError) as caught:
        ran("at")
    assert caught.value.ctx is not None
    assert caught.value.ctx.command_path == "look at"


LITTLE = ("--seconds", 4, "--max-bytes", "8MB", "--max-requests", 300)
CONFIG = """
[datasets.train]
source = "{0}/part-*"
batch_size = 5
shuffle = true

[datasets.test]
source = "{0}/none-*"
"""


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(2):
        with sr.TFRecordWriter(tmp_path / f"part-{number}") as writer:
            writer.write_many({"id": n, "x": [0.5] * 16} for n in range(100))
    return tmp_path


def measured(*arguments: object) -> Figures:
    outcome = cli("bench", *arguments, *LITTLE, "--json")
    assert outcome.code == 0, outcome.err
    return Figures.model_validate_json(outcome.out)


def test_shards_as_text_html_and_trace(shards: Path) -> None:
    files = {name: shards / f"report.{name}" for name in ("html", "json")}
    outcome = cli(
        *("bench", shards / "part-*", *LITTLE, "--set", "batch_size=10"),
        *("--html", files["html"], "--trace", files["json"]),
    )
    assert outcome.code == 0
    assert outcome.err.startswith(f"measuring {shards}/part-*, with at most 4 s, 8.0 MB and 300 ")
    assert "Where the time goes" in outcome.out
    assert files["html"].read_text().startswith("<!doctype html>")
    assert json.loads(files["json"].read_text())["traceEvents"]


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_file_that_cannot_be_written_is_told_before_the_run(shards: Path, option: str) -> None:
    outcome = cli("bench", shards / "part-*", *LITTLE, option, shards / "none/report")
    assert outcome.code == 2
    assert f"there is no directory {shards}/none; create it" in outcome.err
    assert "measuring" not in outcome.err


def test_a_working_directory_that_was_deleted(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shards / "gone").mkdir()
    monkeypatch.chdir(shards / "gone")
    (shards / "gone").rmdir()
    outcome = cli("bench", shards / "part-*", *LITTLE, "--html", "report")
    assert outcome.code == 2
    assert "report: the working directory was deleted; change to" in outcome.err


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_the_figures_are_printed_where_a_file_turns_out_not_to_be_writable(
    shards: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    outcome = cli("bench", shards / "part-*", *LITTLE, option, shards / "report")
    assert outcome.code == 2
    assert "Where the time goes" in outcome.out
    assert f"{shards}/report cannot be written (No space left on device)" in outcome.err


def test_a_dataset_of_a_feeder_s_file(shards: Path) -> None:
    config = shards / "feeder.toml"
    config.write_text(CONFIG.format(shards))
    found = measured("--config", config, "--dataset", "train", "--set", "seed=7")
    assert found.target.urls == [f"{shards}/part-*"]
    assert found.target.settings == {"batch_size": 5, "shuffle": True, "seed": 7}
    assert found.job is not None
    assert found.job.records == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("nothing to measure", "`streamrec bench simulate`")),
        (("--dataset", "train"), ("--config FILE",)),
        (("simulate", "latency=1ms", "--dataset", "train"), ("--config FILE",)),
        (("tcp://a:1/x", "tcp://b:1/x"), ("one feeder", "alone")),
        (("tcp://127.0.0.1:1/x", "--set", "seed=1"), ("seed", "feeder's own file")),
        (("s3://x/y", "--step-time", "5"), ("--step-time", "50ms")),
        (("s3://x/y", "--set", "batch_sice=5"), ("batch_sice", "batch_size")),
        (("s3://x/y", "--set", "source=s3://x/z"), ("--set source", "the URLs are the source")),
        (("compare", "a.json"), ("missing argument 'AFTER'", "`streamrec bench compare --help`")),
        (("plan", "hosts=0,batch=1MB,step=1s"), ("hosts",)),
        (("simulate", "latency=fast"), ("latency", "50ms")),
        (("simulate", "latency=1ms", "--set", "source=x"), ("--set source", "has its own")),
        (("--json", "plan", "batch=1MB"), ("'plan' is a command", "`streamrec bench plan ...`")),
    ],
)
def test_wrong_usage(arguments: Sequence[str], words: Sequence[str]) -> None:
    assert_one_sentence(cli("bench", *arguments), 2, *words)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("tcp://127.0.0.1:1/x", "--config", "feeder.toml"), "--config"),
        (("tcp://127.0.0.1:1/x", "--dataset", "train"), "--dataset"),
        (("tcp://127.0.0.1:1/x", "--storage-option", "anon=true"), "--storage-option"),
        (("tcp://127.0.0.1:1/x", "--max-requests", 20_000), "--max-requests"),
        (("tcp://127.0.0.1:1/x", "--prices", "prices.toml"), "--prices"),
        (("s3://x/y", "--token", "secret"), "--token"),
        (("s3://x/y", "--tls", "ca=ca.pem"), "--tls"),
    ],
)
def test_an_option_without_an_effect_is_refused(arguments: Sequence[str], option: str) -> None:
    assert_one_sentence(cli("bench", *arguments), 2, f"{option} has no effect ", "leave it out")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("compare", ("--config", "--seconds", "--trace", "--token")),
        ("plan", ("--html", "--trace", "--set", "--max-bytes", "--storage-option")),
        ("simulate", ("--prices", "--token", "--tls", "--storage-option")),
    ],
)
def test_a_command_has_only_the_options_that_it_uses(command: str, options: Sequence[str]) -> None:
    for option in options:
        outcome = cli("bench", command, "x", option, "y")
        assert_one_sentence(outcome, 2, f"no such option '{option}'", f"bench {command} --help")


@pytest.mark.parametrize("command", ["compare", "plan", "simulate"])
def test_the_option_of_earlier_versions_names_the_command(command: str) -> None:
    outcome = cli("bench", f"--{command}", "x")
    assert_one_sentence(outcome, 2, f"'--{command}'; it is a command, `streamrec bench {command}`")


def test_the_help_of_all_commands() -> None:
    whole = cli("bench", "--help")
    assert (whole.code, whole.err) == (0, "")
    assert "Usage: streamrec bench [OPTIONS] [URL...] | COMMAND ..." in whole.out
    for command in ("compare", "plan", "simulate"):
        assert f"\n  {command} " in whole.out
        assert f"Usage: streamrec bench {command} [OPTIONS]" in cli("bench", command, "-h").out


def test_names_of_datasets(shards: Path) -> None:
    config = shards / "feeder.toml"
    config.write_text(CONFIG.format(shards))
    assert_one_sentence(cli("bench", "--config", config), 2, "train, test", "--dataset")
    outcome = cli("bench", "--config", config, "--dataset", "trian")
    assert_one_sentence(outcome, 2, "'trian'", "train, test")


def test_shards_that_are_not_there(tmp_path: Path) -> None:
    outcome = cli("bench", tmp_path / "none-*", *LITTLE)
    first, error = outcome.err.splitlines()
    assert outcome.code == 1
    assert first.startswith("measuring ")
    assert error.startswith("streamrec: error: ")
    assert outcome.out == ""


def test_a_plan() -> None:
    job = "hosts=512,batch=1MB,step=150ms"
    outcome = cli("bench", "plan", job)
    assert outcome.code == 0
    assert "hosts x ranks x batch / step = 512 x 1 x 1 MB / 150 ms" in outcome.out
    assert "0.0004 USD" in outcome.out, "the price of the file"
    assert str(CapacityPlan(**cli("bench", "plan", job, "--json").object)) == outcome.out.rstrip()


def test_two_are_compared(tmp_path: Path) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path in paths:
        path.write_text(figures().model_dump_json())
    html = tmp_path / "compared.html"
    outcome = cli("bench", "compare", *paths, "--html", html)
    assert (outcome.code, outcome.err) == (0, "")
    assert "before.json" in outcome.out
    assert html.read_text().startswith("<!doctype html>")
    html.unlink()
    outcome = cli("bench", "compare", *paths, "--json", "--html", html)
    assert outcome.object["names"] == [str(path) for path in paths]
    assert outcome.object["judgement"] == "noise"
    assert html.read_text().startswith("<!doctype html>")


def test_a_simulated_bucket() -> None:
    options = ("latency=1ms", "--shards", 2, "--shard-size", "1MB")
    outcome = in_process("bench", "simulate", *options, *LITTLE, "--json")
    found = Figures.model_validate_json(outcome.out)
    assert outcome.code == 0
    assert found.target.kind == "simulation"
    assert found.target.simulation == "latency=1ms"
    assert found.listing is not None
    assert found.listing.shards == 2
    assert found.spent.requests <= 300
    assert found.spent.bytes <= 8_000_000


def test_ctrl_c_prints_what_it_has(shards: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options = ("latency=10ms", "--shards", 2, "--shard-size", "1MB", "--json")
        with started("bench", "simulate", *options, env=environment()) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(b"measuring ")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 130
    assert out == b"" or Figures.model_validate_json(out).listing is not None
