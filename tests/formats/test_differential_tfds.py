"""TFDS folders give the values and the splits that tensorflow_datasets reads of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError
from tests.formats.beside_tensorflow import IN_ONE_WORKER, drawn
from tests.formats.tfds.tfds_folders import (
    DATASETS,
    assert_same,
    episodes,
    our_rows,
    plain,
    tfds,
    their_rows,
    write_folder,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = IN_ONE_WORKER


@pytest.mark.parametrize("name", DATASETS)
def test_values(name: str, tmp_path: Path) -> None:
    features, rows = DATASETS[name]()
    folder = write_folder(tmp_path, name, features, {"train": rows})
    theirs, ours = their_rows(folder), our_rows(folder)
    assert theirs.keys() == ours.keys() == set(range(len(rows)))
    for number, row in theirs.items():
        assert row.keys() == ours[number].keys()
        for column, value in row.items():
            assert_same(ours[number][column], value, f"{column} of row {number}")


def test_windows_of_episodes(tmp_path: Path) -> None:
    features, rows = episodes([100, 3, 100])
    folder = write_folder(tmp_path, "episodes", features, {"train": rows}, shards=2)
    theirs, settings = their_rows(folder), sr.Window(4, stride=3, pad=None)
    found = []
    with sr.open(
        folder, split="train", window=settings, batch_size=16, shuffle=True, engine="thread"
    ) as stream:
        for batch in stream:
            for row, number in enumerate(batch["row"].tolist()):
                first = batch["window/first"][row]
                found.append((number, int(first)))
                for column, value in theirs[number].items():
                    cut = value[first : first + 4] if column.startswith("steps/") else value
                    assert_same(plain(batch[column][row]), cut, column)
    wanted = [(n, k) for n, steps in ((0, 100), (2, 100)) for k in range(0, steps - 3, 3)]
    assert sorted(found) == wanted


LENGTHS = {"train": 23, "test": 7, "extra-1": 4}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three splits in four shards each; a row's id names its split, too."""
    splits = {
        name: [{"id": 100 * place + row} for row in range(length)]
        for place, (name, length) in enumerate(LENGTHS.items())
    }
    place = tmp_path_factory.mktemp("numbers")
    return write_folder(place, "numbers", {"id": np.int64}, splits, shards=4)


BOUNDS = st.one_of(
    st.none(),
    st.tuples(st.integers(-25, 25), st.just("")),
    st.tuples(st.integers(-100, 100), st.just("%")),
    st.tuples(st.integers(-4, 4), st.just("shard")),
)


@st.composite
def slices(draw: st.DrawFn) -> str:
    name, first, last = draw(st.sampled_from([*LENGTHS])), draw(BOUNDS), draw(BOUNDS)
    if first is None and last is None:
        return name
    texts = ["" if bound is None else f"{bound[0]}{bound[1]}" for bound in (first, last)]
    return f"{name}[{':'.join(texts)}]"


def their_ids(folder: Path, split: str) -> list[int]:
    """Return the ids that their file instructions select, in their order."""
    info = tfds.builder_from_directory(folder).info
    splits = tfds.core.splits
    found: list[int] = []
    for instruction in splits._make_file_instructions(list(info.splits.values()), split):
        with open_shard(instruction.filename) as records:
            ids = [record["id"] for record in records]
        found += ids[instruction.skip : instruction.skip + instruction.take]
    return found


def open_shard(url: str) -> Any:
    return sr.open(url, {"id": sr.FixedLenFeature((), "int64")}, engine="thread")


@drawn
@given(split=st.lists(slices(), min_size=1, max_size=3).map("+".join))
def test_splits(numbers: Path, split: str) -> None:
    try:
        theirs = their_ids(numbers, split)
    except (ValueError, AssertionError):
        with pytest.raises(ConfigError, match=r"split|slice"):
            our_ids(numbers, split)
        return
    if not theirs:
        with pytest.raises(ConfigError, match="selects no record"):
            our_ids(numbers, split)
        return
    assert our_ids(numbers, split, lanes=1) == theirs
    assert sorted(our_ids(numbers, split, shuffle=True)) == sorted(theirs)


def our_ids(folder: Path, split: str, **settings: Any) -> list[int]:
    with sr.open(folder, split=split, batch_size=3, engine="thread", **settings) as stream:
        length = len(stream)
        ids = [batch["id"].tolist() for batch in stream]
    assert len(ids) == length
    return [one for batch in ids for one in batch]
