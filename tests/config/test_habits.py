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


def test_they_stand_in_order() -> None:
    assert list(HABITS) == sorted(HABITS)
