"""Evaluation with Lightning, Accelerate and transformers: each loop has all its records."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.adapters.test_torch_training import RECORDS
from tests.adapters.test_torch_workers import PATIENCE

pytestmark = [
    pytest.mark.xdist_group("trainers"),  # the programs run once, in one worker
    *(
        pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not there")
        for name in ("lightning", "accelerate", "transformers")
    ),
    pytest.mark.timeout(2 * PATIENCE),
]
ALL = list(range(RECORDS))


@pytest.fixture(scope="module")
def cases(trainers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return trainers["evaluated"]


@pytest.mark.parametrize("length", ["known", "unknown"])
class TestLightning:
    def test_each_validation_has_all_records(self, cases: dict[str, Any], length: str) -> None:
        """Also the one behind the sanity check, which breaks off."""
        loops = cases[length]["whole"]
        assert [len(ids) for ids in loops["sanity"]] == [12]
        assert [sorted(ids) for ids in loops["validate"]] == [ALL] * 3

    def test_a_limit_gives_the_same_records_each_time(
        self, cases: dict[str, Any], length: str
    ) -> None:
        loops = cases[length]["part"]
        assert {name: len(runs) for name, runs in loops.items()} == {
            "validate": 5, "test": 2, "predict": 2,
        }  # fmt: skip
        every = [ids for runs in loops.values() for ids in runs]
        assert every == [every[0]] * 9
        assert len(set(every[0])) == 12

    def test_training_goes_on_as_before(self, cases: dict[str, Any], length: str) -> None:
        assert sorted(cases[length]["trained"]) == sorted(3 * ALL)


def test_accelerate(cases: dict[str, Any]) -> None:
    for part, whole in zip(cases["accelerate"][::2], cases["accelerate"][1::2], strict=True):
        assert part == whole[:12]
        assert sorted(whole) == ALL


def test_transformers(cases: dict[str, Any]) -> None:
    assert [sorted(ids) for ids in cases["trainer"]] == [ALL] * 2


class TestWithoutEnd:
    @pytest.mark.parametrize("loop", ["fit", "test", "predict", "trainer"])
    def test_it_is_refused(self, cases: dict[str, Any], loop: str) -> None:
        assert "this evaluation would never end; open it without epochs=" in cases["endless"][loop]

    def test_it_is_refused_before_the_training(self, cases: dict[str, Any]) -> None:
        assert cases["endless"]["trained"] == "[]"

    def test_a_limit_or_a_shorter_loader_is_an_end(self, cases: dict[str, Any]) -> None:
        assert cases["endless"]["limited"] == "12"
        assert cases["endless"]["side by side"] == str(RECORDS)
