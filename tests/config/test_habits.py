from __future__ import annotations

from streamrec.config import StreamSettings
from streamrec.config.habits import HABITS


def test_no_habit_is_a_setting() -> None:
    assert not HABITS.keys() & StreamSettings.model_fields.keys()


def test_they_stand_in_order() -> None:
    assert list(HABITS) == sorted(HABITS)
