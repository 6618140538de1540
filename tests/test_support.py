from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import examples, open_fds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def the_profile_as_it_was() -> Iterator[None]:
    """Restore the profile after a test that loads another one."""
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


@pytest.mark.parametrize(
    ("profile", "own", "scaled"),
    [
        ("local", 12, 12),
        ("local", 300, 300),
        ("day", 300, 30),
        ("day", 12, 5),
        ("day", 2, 2),
        ("night", 12, 120),
        ("night", 2, 20),
    ],
)
def test_the_profile_scales_a_number_of_examples(profile: str, own: int, scaled: int) -> None:
    settings.load_profile(profile)
    assert examples(own) == scaled


def test_every_test_that_has_a_number_of_its_own_lets_the_profile_scale_it() -> None:
    files = Path(__file__).parent.rglob("test_*.py")
    assert [path.name for path in files if re.search(r"max_examples=\d", path.read_text())] == []


def test_a_descriptor_that_is_left_shows_though_another_was_closed() -> None:
    closed_late = os.open("/dev/null", os.O_RDONLY)
    before = open_fds()
    left, gone = os.pipe()
    os.close(gone)
    os.close(closed_late)
    assert [fd for fd, _, _ in open_fds() - before] == [left]
    os.close(left)
    assert open_fds() <= before
