from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests import mutate
from tests.mutate import ROOT, changes, is_noticed, mutants_of, sample, suites_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ("a < b", ["a <= b"]),
        ("a and not b", ["(a or not b)", "(b)"]),
        ("x = 3 + y", ["3 - y", "4"]),
        ("f(True)", ["pass", "False"]),
        ("log.warning('%d', 3)", []),
        ("raise ValueError(f'{a + 1}')", []),
        ("def f(a: int = 3) -> None: return a", []),
        ("if TYPE_CHECKING:\n    x = 1", []),
    ],
)
def test_what_is_changed(code: str, texts: list[str]) -> None:
    assert [text for _, text in changes(ast.parse(code))] == texts


def test_each_change_is_a_program() -> None:
    path = ROOT / "streamrec/plan/order.py"
    same = ast.dump(ast.parse(path.read_bytes()))
    mutants = mutants_of(path)
    assert len(mutants) > 20
    assert all(ast.dump(ast.parse(mutant.source())) != same for mutant in mutants)


def test_the_same_seed_draws_the_same() -> None:
    assert sample(5, 1, "values") == sample(5, 1, "values") != sample(5, 2, "values")


def test_a_change_is_noticed_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "streamrec/plan/buckets.py"
    mutant = mutants_of(path)[0]
    copied = tmp_path / path.relative_to(ROOT)
    copied.parent.mkdir(parents=True)
    seen = []
    monkeypatch.setattr(mutate, "fails", lambda tests, tree: seen.append(copied.read_bytes()))
    assert not is_noticed(mutant, tmp_path)
    assert seen == [mutant.source()] * len(suites_of(path))
    assert copied.read_bytes() == path.read_bytes()
