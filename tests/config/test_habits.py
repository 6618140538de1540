from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.config.habits import HABITS, METHODS
from streamrec.errors import ConfigError


def test_no_habit_is_a_setting() -> None:
    assert not HABITS.keys() & StreamSettings.model_fields.keys()


def test_block_length() -> None:
    """The sentence is true: lanes give one record in turn."""
    with pytest.raises(
        ConfigError, match=r"block_length.*lanes give one record in turn, and batch"
    ):
        sr.open("x", block_length=4)  # type: ignore[call-overload]


def test_an_option_of_a_store() -> None:
    with pytest.raises(ConfigError, match=r"region_name.*={'client_kwargs': {'region_name': …}}"):
        sr.open("x", region_name="eu-west-3")  # type: ignore[call-overload]


def test_they_stand_in_order() -> None:
    assert list(HABITS) == sorted(HABITS)


@pytest.mark.parametrize("name", ["prefetch", "lanes"])
def test_autotune(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is -1, as tf.data.AUTOTUNE; .* leave it out"):
        sr.open("x", **{name: -1})  # type: ignore[call-overload]


class ReadInstruction:
    __module__ = "tensorflow_datasets.core.splits"


@pytest.mark.parametrize(
    ("split", "words"),
    [(["train", "test"], r"split='train\+test'"), (ReadInstruction(), "a ReadInstruction, but")],
)
def test_a_split_that_is_not_a_text(split: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sr.open("x", split=split)


PAGES = Path(__file__).parents[2] / "docs" / "how-to"
CALL = re.compile(r"\b(\w+)=[^=]")
METHOD = re.compile(r"\.(\w+)\(")
FUNCTIONS = {"take", "mix", "islice", "state_dict", "load_state_dict", "Pack"}
NAMED = FUNCTIONS.union(StreamSettings.model_fields)


def rows_of(page: str) -> list[tuple[str, str]]:
    """Return the rows of a page's tables: the other library's code, and what stands beside."""
    lines = (PAGES / page).read_text().splitlines()
    cells = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| `")]
    return [(cell[0], cell[1]) for cell in cells if len(cell) == 2]


@pytest.mark.parametrize("library", ["tensorflow", "webdataset", "mosaic", "grain"])
def test_hints_say_what_the_tables_of_the_page_say(library: str) -> None:
    """A setting or function that a hint names stands in a row with the other library's name."""
    rows, checked = rows_of(f"from-{library}.md"), 0
    for pattern, hints in ((CALL, HABITS), (METHOD, METHODS)):
        for name, hint in hints.items():
            beside = " ".join(ours for theirs, ours in rows if name in pattern.findall(theirs))
            words = NAMED.intersection(re.findall(r"\w+", hint)) - {"source"}
            if not beside or not words or "leave it out" in hint:
                continue
            assert words.intersection(re.findall(r"\w+", beside)), (name, hint, beside)
            checked += 1
    assert checked > 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cycle_length", "it is lanes"),
        ("num_parallel_reads", "it is lanes"),
        ("deterministic", "use ordered=False"),
        ("epoch_size", "it is steps_per_epoch"),
        ("resampled", "shuffle=True and epochs=None"),
        ("worker_count", "reads ahead by itself"),
        ("reshuffle_each_iteration", r"rewind\(\)"),
        ("shuffle_files", "it is shuffle=True"),
        ("as_supervised", "gives pairs"),
        ("count", "it is epochs"),
    ],
)
def test_a_setting_of_another_library(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{words}"):
        sr.open("x", **{name: 4})  # type: ignore[call-overload]
