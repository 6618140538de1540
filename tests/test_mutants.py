from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.mutants import ROOT, changes, mutants_of, sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mutants import Mutant


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
        ("x: int = field(default=1, repr=False)", []),
        ("@dataclass(frozen=True)\nclass A:\n    x: int = 1", ["2"]),
        ("zip(a, b, strict=True)", ["pass"]),
        ("y = x.reshape(-1)", []),
    ],
)
def test_what_is_changed(code: str, texts: list[str]) -> None:
    assert [text for _, text in changes(ast.parse(code))] == texts


@pytest.mark.night
def test_each_change_is_a_program() -> None:
    path = ROOT / "streamrec/plan/order/shard_order.py"
    same = ast.dump(ast.parse(path.read_bytes()))
    mutants = mutants_of(path)
    assert len(mutants) > 20
    assert all(ast.dump(ast.parse(mutant.source())) != same for mutant in mutants)


@pytest.mark.night
def test_the_same_seed_draws_the_same() -> None:
    assert sample(5, 1, "values") == sample(5, 1, "values") != sample(5, 2, "values")


def test_a_change_of_the_source_leaves_the_draw_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, *others = sample(10, 1, "values")
    # Two changes of one line may have one name.
    rest = [each for each in others if each.name != first.name]
    found = mutants_of

    def without_it(path: Path) -> list[Mutant]:
        return [each for each in found(path) if each.name != first.name]

    monkeypatch.setattr("tests.mutants.mutants_of", without_it)
    assert sample(10, 1, "values")[: len(rest)] == rest


def test_the_name_of_a_change_says_where_and_what_it_is() -> None:
    names = [mutant.name for mutant in mutants_of(ROOT / "streamrec/plan/order/shard_order.py")]
    line = "dealt = rows * self.lanes + columns"
    assert f"plan/order/shard_order.py | {line} | rows * self.lanes -> rows // self.lanes" in names
