from __future__ import annotations

import pytest

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.config.habits import HABITS
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
