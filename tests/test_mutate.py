from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests import mutate
from tests.mutants import ROOT, mutants_of
from tests.mutate import Tree, attempt, failed_test, name_in, suites_of, table
from tests.nearest_tests import IN_ONE_WORKER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mutants import Mutant

pytestmark = [pytest.mark.xdist_group(IN_ONE_WORKER), pytest.mark.night]

PATH = ROOT / "streamrec/plan/order/window.py"


def tree_of(place: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Return a copy that has one file."""
    (place / PATH.relative_to(ROOT)).parent.mkdir(parents=True)
    monkeypatch.setattr(mutate, "copy_of_tree", lambda _: place)
    return Tree(str(place), patience=10)


def test_a_change_is_tried_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutants_of(PATH)[0]
    tree = tree_of(tmp_path, monkeypatch)
    copied, seen = tmp_path / PATH.relative_to(ROOT), list[bytes]()
    monkeypatch.setattr(tree, "_failing", lambda _: seen.append(copied.read_bytes()))
    assert not tree.notices(mutant)
    assert seen == [mutant.source()] * len([*suites_of(PATH)])
    assert copied.read_bytes() == PATH.read_bytes()


def test_the_nearest_test_that_fails_has_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = mutants_of(PATH)[0]
    tree = tree_of(tmp_path, monkeypatch)
    copied, seen = tmp_path / PATH.relative_to(ROOT), list[bytes]()

    def run(*_: object) -> int:
        seen.append(copied.read_bytes())
        return int(copied.read_bytes() == mutant.source())

    monkeypatch.setattr(tree, "_failing", lambda tests: tests[0])
    monkeypatch.setattr(tree, "_run", run)
    for _ in range(2):
        assert attempt([mutant], tree) == {mutant: "tests/plan/order/test_window.py"}
    once, again = PATH.read_bytes(), mutant.source()
    assert seen == [once, again, again], "once without the change, and each time with it"


def test_a_test_that_fails_without_the_change_has_noticed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tree_of(tmp_path, monkeypatch)
    failing = ["a", "b", "b"]
    monkeypatch.setattr(tree, "_failing", lambda _: failing.pop(0) if failing else "")
    monkeypatch.setattr(tree, "_run", lambda *_: 1)
    assert not tree.notices(mutants_of(PATH)[0])
    assert tree.broken == {"a", "b"}


@pytest.mark.night
def test_a_test_that_fails_once_has_noticed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tree_of(tmp_path, monkeypatch)
    failing = ["a"]
    monkeypatch.setattr(tree, "_failing", lambda _: failing.pop() if failing else "")
    monkeypatch.setattr(tree, "_run", lambda *_: 0)
    assert not tree.notices(mutants_of(PATH)[0])
    assert tree.broken == {"a"}


def test_a_run_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [each for each in mutants_of(PATH) if "cycles =" in each.name and each.text == "2"]
    mutants = [*two, mutants_of(PATH)[0]]
    assert mutants[0].name == mutants[1].name, "on one line"
    tree = tree_of(tmp_path / "tree", monkeypatch)
    results, tried = tmp_path / "results", list[str]()

    def notices(mutant: Mutant) -> str:
        tried.append(mutant.name)
        return "" if mutant == mutants[0] else "tests/a.py::test_x"

    monkeypatch.setattr(tree, "notices", notices)
    first = attempt(mutants[:2], tree, results)
    both = attempt(mutants, tree, results)
    assert first == {mutants[0]: "", mutants[1]: "tests/a.py::test_x"}
    assert both == first | {mutants[2]: "tests/a.py::test_x"}
    assert tried == [each.name for each in mutants]


@pytest.mark.night
def test_a_test_that_hangs_is_ended_before_the_time_of_all_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, given = tree_of(tmp_path, monkeypatch), list[int]()

    def run(*_: object, most: int) -> int:
        given.append(most)
        return 0

    monkeypatch.setattr(tree, "_run", run)
    for tree.patience in (1.0, 100.0):
        assert not tree.notices(mutants_of(PATH)[0])
    assert (min(given), max(given)) == (2 * mutate.HANG, 300)


def test_no_suite_is_empty_which_would_be_all_tests() -> None:
    for path in (PATH, ROOT / "streamrec/__main__.py", ROOT / "streamrec/gone/gone.py"):
        suites = [*suites_of(path)]
        assert all(suites)
        assert mutate.WHOLE in suites


def test_names_are_read_from_files_and_from_what_is_printed() -> None:
    name = "a.py | x = lambda: {1: 2} | 1 -> 2"
    for line in (name, f"not noticed: {name}", f"noticed by tests/a.py::test_x (3 s): {name}"):
        assert name_in(line) == name


def test_the_test_that_failed() -> None:
    begun = "tests/a.py::test_x[1 2] PASSED [ 50%]\ntests/a.py::test_y "
    assert failed_test(f"{begun}\nFAILED tests/a.py::test_z[1] - why", []) == "tests/a.py::test_z"
    assert failed_test("ERROR tests/a.py - why", []) == "tests/a.py"
    assert failed_test(f"{begun}++ Timeout ++", []) == "tests/a.py::test_y"
    assert failed_test("", ["tests/a.py"]) == "tests/a.py"


@pytest.mark.parametrize("noticed", [0, 1, 2])
def test_what_is_named_is_tried_and_must_be_noticed(
    noticed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [each.name for each in mutants_of(PATH)[:2]]
    only = tmp_path / "only"
    only.write_text("\n".join(["# a | comment", "gone.py | x | 1 -> 2", *names]))
    monkeypatch.setattr(mutate, "sample", lambda *_: mutants_of(PATH))
    monkeypatch.setattr(mutate, "copy_of_tree", lambda _: tmp_path)
    tests = iter(["tests/a.py::test_x"] * noticed + [""] * 2)
    monkeypatch.setattr(Tree, "notices", lambda *_: next(tests))
    result = CliRunner().invoke(mutate.main, ["--only", str(only), "--least", "0.5"])
    assert "2 of 4 lines are not in the source any more" in result.output
    assert f"| all | 2 | {noticed} ({noticed / 2:.0%}) | 0 |" in result.output
    assert (result.exit_code == 0) == (noticed > 0)


def test_a_run_of_nothing_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "only").write_text("gone.py | x | 1 -> 2")
    options = ["--room", "values", "--only", str(tmp_path / "only")]
    assert CliRunner().invoke(mutate.main, options).exit_code == 1


def test_the_table() -> None:
    lines = table(Counter(a=3, b=1), Counter(a=2, b=1), Counter(c=1)).splitlines()
    assert lines[-2:] == ["| c | 0 | 0 | 1 |", "| all | 4 | 3 (75%) | 1 |"]
