from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from streamrec.streams.audit_part import Part
from tests.cli.support import assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.pipeline.small_datasets import write, write_index
from tests.streams.test_audit_log import BY_RECORD, ORDER, SHARDS, THREAD, follow


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path / "raw", SHARDS)
    write_index(source, 50)
    return source


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def run(source: str, log: Path, values: dict[str, Any]) -> None:
    with sr.open(source, **THREAD, **values, audit=log) as stream:
        follow(stream)


def test_a_log_that_agrees(source: str, log: Path) -> None:
    run(source, log, {**BY_RECORD, "exclude": [("part-00001.tfrecord", 3)]})
    code, out, err = cli("which", "--audit", log)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "rank 0 of 1: 8 steps, from 0 to 7, 8 as computed, 1 masked record",
        "all steps in the log are those of the settings",
    ]


def test_json_lines(source: str, log: Path) -> None:
    run(source, log, BY_RECORD)
    code, out, _ = cli("which", "--audit", log, "--json")
    rank, end = map(json.loads, out.splitlines())
    size = sum(path.stat().st_size for path in log.rglob("*.audit"))
    assert (code, end) == (0, {"gaps": [], "strays": [], "agrees": True})
    assert rank == {
        "rank": 0, "world_size": 1, "objects": 2, "nbytes": size, "steps": 8, "computed": 8,
        "read": 0, "unchecked": 0, "skipped": 0, "masked": 0, "again": 0,
        "spans": [[0, 1], [1, 8]], "faults": [],
    }  # fmt: skip


def test_shards_are_read_again(source: str, log: Path) -> None:
    run(source, log, ORDER)
    code, out, _ = cli("which", "--audit", log)
    assert (code, out.splitlines()[-1]) == (
        0,
        "nothing is missing, but 8 steps were not compared; add --read for that",
    )
    code, out, _ = cli("which", "--audit", log, "--read")
    assert (code, out.splitlines()[0]) == (0, "rank 0 of 1: 8 steps, from 0 to 7, 8 as read again")


def test_what_cannot_be_compared(source: str, log: Path) -> None:
    """Who has given --read is not told to add it."""
    unordered = {"ordered": False, "batch_size": 4, "steps_per_epoch": 1}
    run(source, log, unordered)
    code, out, _ = cli("which", "--audit", log, "--read")
    assert (code, out.splitlines()[-1]) == (
        0,
        "nothing is missing, but 1 step was not compared; with ordered=False nothing can be "
        "compared",
    )
    (log / "other.audit").touch()
    code, out, _ = cli("which", "--audit", log)
    assert code == 1
    assert "other.audit: this object is not in the directory of a rank" in out


def test_a_log_that_was_changed(source: str, log: Path) -> None:
    run(source, log, BY_RECORD)
    path = max(log.rglob("*.audit"))
    part = Part.parse(path.read_bytes(), str(path))
    entries = part.stretches[0].entries
    entries[2] = entries[2]._replace(digest=bytes(16))
    path.write_bytes(part.encode())
    code, out, _ = cli("which", "--audit", log)
    assert code == 1
    head, fault, end = out.splitlines()
    assert head == "rank 0 of 1: 8 steps, from 0 to 7, 7 as computed, 1 fault"
    assert fault.startswith("step 3 of rank 0 of 1 differs: the log has the digest 0000")
    assert end == "the log does not agree with the settings, or is not complete"


def test_options_replace_the_settings_of_the_log(source: str, log: Path, tmp_path: Path) -> None:
    run(source, log, BY_RECORD)
    copy = Path(source).parent.rename(tmp_path / "elsewhere")
    assert_one_sentence(cli("which", "--audit", log), 1, "part-*.tfrecord")
    assert cli("which", f"{copy}/part-*.tfrecord", "--audit", log).code == 0
    config = tmp_path / "feeder.toml"
    config.write_text(f'[datasets.a]\nsource = "{copy}/part-*.tfrecord"\nbatch_size = 4\n')
    assert cli("which", "--audit", log, "--config", config).code == 0
    outcome = cli("which", f"{copy}/part-*.tfrecord", "--audit", log, "--set", "seed=4")
    assert outcome.code == 1
    assert "seed was 3 and is 4" in outcome.out


@pytest.mark.parametrize(
    "option", [("--step", 3), ("--find", "a:1"), ("--world-size", 2), ("--show",), ("--key", "id")]
)
def test_options_that_have_no_effect(option: tuple[Any, ...]) -> None:
    outcome = cli("which", "--audit", "log", *option)
    assert outcome.code == 2
    assert f"{option[0]} has no effect with --audit" in outcome.err


def test_there_is_no_log(tmp_path: Path) -> None:
    assert_one_sentence(cli("which", "--audit", tmp_path), 1, "there is no audit log")
