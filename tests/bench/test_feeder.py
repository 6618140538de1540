from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from bench.datasets import Dataset
from bench.feeder import PARTS, Cell, Turn, as_markdown, groups, main, targets
from bench.feeder_systems import BARE, ENGINE, SHARED, SYSTEMS, TCP, TF_SERVICE, Load, Setup

if TYPE_CHECKING:
    from pathlib import Path

NAMED = {system.name: system for system in SYSTEMS}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    dataset = Dataset(tmp_path, "images-8x8", 8, 64, 10_000, 0, {"label": {}})
    return Load(dataset, batch_size=4, nbytes=1000)


def cell(part: str, name: str, load: Load, rates: list[float]) -> Cell:
    turns = [Turn(rate, 4 * rate, 0.25, 0.5, [0.001] * 99 + [1.0]) for rate in rates]
    return Cell(part, NAMED[name], load, turns)


def test_all_systems_of_a_group_read_the_same(load: Load) -> None:
    other = replace(load, dataset=replace(load.dataset, name="tokens-8x8"))
    found = list(groups([other, load], SYSTEMS, PARTS))
    assert len(found) == 4
    for group in found:
        assert len({(cell.part, cell.load.name) for cell in group}) == 1
        assert BARE in [cell.system.name for cell in group]
    titles = [cell.title for group in found for cell in group]
    assert len(titles) == len(set(titles))


def test_what_is_not_there_is_skipped_with_a_reason() -> None:
    setup = Setup([], "/elsewhere/python", None)
    for system in SYSTEMS:
        reason = system.missing(setup, dict.fromkeys(system.needs))
        assert (reason is not None) >= bool(system.needs)
        if system.needs:
            assert f"/elsewhere/python lacks {system.needs[0]}" in str(reason)


def test_ratios_are_of_the_same_turn(load: Load) -> None:
    bare = cell("ready", BARE, load, [1000.0, 100.0, 1000.0])
    ours = cell("ready", TCP, load, [800.0, 90.0, 700.0])
    assert ours.over(bare) == 0.8
    assert (ours.wait(0.5), ours.wait(0.995)) == (0.001, 1.0)
    text = as_markdown([bare, ours])
    assert "| streamrec, TCP             |   0.80 |" in text
    assert "| bare socket, MB/s          |  1,000 |" in text


def test_the_aims(load: Load) -> None:
    cells = [
        cell("ready", BARE, load, [1000.0]),
        cell("ready", TCP, load, [700.0]),
        cell("ready", SHARED, load, [900.0]),
        cell("ready", ENGINE, load, [1000.0]),
        cell("shards", TCP, load, [500.0]),
        cell("shards", TF_SERVICE, load, [100.0]),
    ]
    found = [(target.aim, target.measured, target.met) for target in targets(cells)]
    assert found == [(0.7, 0.7, True), (0.9, 0.9, True), (4.0, 5.0, True)]


def test_a_system_that_failed_has_no_numbers(load: Load) -> None:
    broken = cell("ready", TCP, load, [])
    broken.failure = "it ended"
    text = as_markdown([broken])
    assert text.count("| streamrec, TCP     |      - |") == 1
    assert broken.over(broken) is None


def test_a_short_run(tmp_path: Path) -> None:
    arguments = ["--data", tmp_path / "data", "--output", tmp_path, "--size", 0.005]
    arguments += ["--kinds", "tokens", "--repeat", 1, "--seconds", 0.1]
    arguments += ["--only", "bare", "--only", "TCP", "--part", "ready"]
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads((tmp_path / "feeder.json").read_text())
    assert {(row["part"], row["system"]) for row in content["rows"]} == {
        ("ready", BARE),
        ("ready", TCP),
    }
    for row in content["rows"]:
        [turn] = row["turns"]
        assert turn["records_per_second"] > 0
    assert "### aims" in (tmp_path / "feeder.md").read_text()


def test_systems_that_need_nothing_run_in_this_interpreter() -> None:
    setup = Setup([], "/elsewhere/python", None)
    for system in SYSTEMS:
        assert system.python(setup) == ("/elsewhere/python" if system.needs else sys.executable)
