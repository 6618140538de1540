from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings, validate
from streamrec.feeder.functions.map_identity import Codes, codes_of, with_identity
from streamrec.feeder.functions.sent_functions import identity_of
from tests.feeder.fake_dataset import FakeDataset
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def doubled(columns: Any) -> Any:
    return {"x": columns["x"] * 2}


def settings(**values: Any) -> DatasetSettings:
    return validate(DatasetSettings, {"source": "x", **values})


def test_a_cache_of_mapped_records_gets_the_digest_of_the_map() -> None:
    for given in (doubled, f"{__name__}:doubled"):
        found = with_identity(settings(map=given, cache={"of": "mapped", "size": "1GiB"}))
        assert found.cache is not None
        assert (found.cache.key, found.cache.size) == (identity_of(doubled), 1 << 30)


def test_all_else_stays_as_it_is() -> None:
    for values in (
        {"map": doubled, "cache": {"of": "mapped", "key": "own"}},
        {"map": doubled, "cache": {"of": "ranges"}},
        {"map": doubled},
    ):
        given = settings(**values)
        assert with_identity(given) is given


PROGRAM = """
import os
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = str(FOLDER / "names.txt")
WORDS = {"a", "bb", "ccc", "dddd"}
LIMIT = 3


class Table:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, value):
        return value * self.factor if value in WORDS else len(NAMES)


def shown(columns):
    return columns if os.environ.get("HOST") else {"x": str(FOLDER / "other")}


def is_short(columns):
    return columns["x"] < LIMIT


doubled = partial(Table(2))
"""

FEEDER = """
import json
from streamrec.config import DatasetSettings, validate
from streamrec.feeder.functions.map_identity import codes_of

functions = {"filter": "program:is_short", "map": "program:doubled", "transform": "program:shown"}
print(json.dumps(codes_of(validate(DatasetSettings, {"source": "x", **functions}))))
"""


def codes_elsewhere(folder: Path, program: str, hash_seed: int) -> dict[str, str]:
    """Return the digests that a feeder of another host tells, by the functions' settings."""
    folder.mkdir()
    (folder / "program.py").write_text(program)
    changes = {"PYTHONPATH": str(folder), "PYTHONHASHSEED": str(hash_seed), "HOST": folder.name}
    command = [sys.executable, "-c", FEEDER]
    told = subprocess.check_output(command, env={**os.environ, **changes}, text=True)
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    found = {name: str(code) for name, code in json.loads(told).items()}
    settings = ("filter", "map", "transform")
    return {setting: found[f"code of {setting} in {python}"] for setting in settings}


def test_feeders_of_two_hosts_tell_one_code_where_it_is_the_same(tmp_path: Path) -> None:
    first = codes_elsewhere(tmp_path / "a", PROGRAM, 1)
    assert len(set(first.values())) == 3
    assert codes_elsewhere(tmp_path / "elsewhere", f"# a comment\n{PROGRAM}", 2) == first
    changed = PROGRAM.replace("LIMIT = 3", "LIMIT = 4").replace("Table(2)", "Table(3)")
    changed = changed.replace('"other"', '"another"')
    other = codes_elsewhere(tmp_path / "other", changed, 1)
    assert [name for name in first if other[name] == first[name]] == []


def test_a_function_that_cannot_be_told_has_no_code() -> None:
    def of_this_time(columns: Any) -> Any:
        return globals()

    found = codes_of(settings(map=of_this_time, filter=doubled))
    assert [name.split()[2] for name in found] == ["filter"]


@asynchronous
async def test_the_codes_of_a_dataset_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DatasetSettings] = []

    def make(given: DatasetSettings) -> dict[str, str]:
        made.append(given)
        return {}

    monkeypatch.setattr("streamrec.feeder.functions.map_identity.codes_of", make)
    codes, dataset = Codes(), FakeDataset()
    assert await codes.of(dataset) == {}
    assert not made
    dataset.settings = settings(map=doubled)
    for _ in range(2):
        assert await codes.of(dataset) == {}
    assert made == [dataset.settings]
