from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import MalformedImage
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.episode_pictures import EpisodePictures, KeptEpisodes
from streamrec.formats.examples.episode_windows import EpisodeParser
from streamrec.values.record_rows import RecordRows
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

EPISODES, STEPS, LENGTH = 3, 6, 3
FEATURES: Any = describe({"image": sr.Image((2, 2), sequence=True), "n": sr.VarLenFeature("int64")})
PICTURE = 2 * 2 * 3
"""Bytes of a decoded picture."""
Windows = list[tuple[int, int]]
EVERY: Windows = [(e, s) for e in range(EPISODES) for s in range(STEPS - LENGTH + 1)]


def picture(episode: int, step: int) -> Any:
    return np.full((2, 2, 3), 20 * episode + step, np.uint8)


def record(episode: int) -> dict[str, Any]:
    pictures = [sr.encode_png(picture(episode, step)) for step in range(STEPS)]
    return {"image": pictures, "n": np.arange(STEPS)}


RECORDS = RecordRows.of([sr.encode_example(record(episode)) for episode in range(EPISODES)])


def rows_of(windows: Windows) -> RecordRows:
    episodes, steps = np.array(windows, np.int64).reshape(-1, 2).T
    return replace(RECORDS.pick(episodes), steps=np.ascontiguousarray(steps))


class Counting:
    """A parser of windows that counts how often each picture is decoded."""

    def __init__(self, window: sr.Window, capacity: int) -> None:
        self.decoded: Counter[int] = Counter()

        def fill(_: Any, __: Any, target: Any, make: Callable[[], None]) -> None:
            make()
            self.decoded[target.flat[0]] += 1

        self.parser = EpisodeParser(FEATURES, window, capacity=capacity, fill_picture=fill)

    def check(self, windows: Windows) -> None:
        columns: Any = self.parser.parse(rows_of(windows))
        wanted = [[picture(e, s + k) for k in range(LENGTH)] for e, s in windows]
        np.testing.assert_array_equal(
            columns["image"], np.array(wanted, np.uint8).reshape(-1, LENGTH, 2, 2, 3)
        )
        assert list(columns) == ["image", "n", "window/first", "window/mask"]


def test_pictures_that_windows_of_several_batches_share_are_decoded_once() -> None:
    counting = Counting(sr.Window(LENGTH), capacity=1 << 20)
    for windows in (EVERY[::2], EVERY[1::2], EVERY):
        counting.check(windows)
    assert set(counting.decoded.values()) == {1}
    assert len(counting.decoded) == EPISODES * STEPS


def test_without_room_no_picture_is_kept() -> None:
    counting = Counting(sr.Window(LENGTH), capacity=0)
    counting.check([(0, 0), (0, 1)])
    counting.check([(0, 0)])
    assert counting.decoded == {0: 2, 1: 2, 2: 2, 3: 1}


def test_pictures_of_a_single_window_are_not_kept() -> None:
    counting = Counting(sr.Window(LENGTH, stride=LENGTH), capacity=1 << 20)
    counting.check([(0, 0), (1, 3)])
    counting.check([(0, 0)])
    assert set(counting.decoded.values()) == {1, 2}


@given(
    batches=st.lists(st.lists(st.sampled_from(EVERY), max_size=6), max_size=6),
    capacity=st.integers(0, 4000),
    stride=st.integers(1, LENGTH),
)
@settings(max_examples=examples(60))
def test_windows_do_not_depend_on_what_is_kept(
    batches: list[Windows], capacity: int, stride: int
) -> None:
    counting = Counting(sr.Window(LENGTH, stride), capacity)
    for windows in batches:
        counting.check(windows)


@pytest.mark.parametrize("stride", [1, LENGTH])
def test_a_damaged_picture_names_the_record_of_its_window(stride: int) -> None:
    damaged = record(1)
    damaged["image"][4] = b"x"
    records = RecordRows.of([sr.encode_example(one) for one in (record(0), damaged)])
    parser = EpisodeParser(FEATURES, sr.Window(LENGTH, stride), capacity=1 << 20)
    rows = replace(records.pick(np.array([0, 1, 1])), steps=np.array([0, 0, 3]))
    with pytest.raises(MalformedImage) as caught:
        parser.parse(rows)
    assert (caught.value.record, caught.value.feature) == (1, "image")


def episode(number: int, nbytes: int) -> EpisodePictures:
    return EpisodePictures((0, number), {}, nbytes)


def test_the_episodes_used_last_are_kept() -> None:
    kept = KeptEpisodes(100)
    one, two = kept.keep(episode(1, 40)), kept.keep(episode(2, 40))
    assert kept.find(one.record) is one
    kept.keep(episode(3, 40))
    assert kept.find(two.record) is None
    assert kept.find(one.record) is one


def test_decoded_pictures_count_for_their_episode() -> None:
    kept = KeptEpisodes(100)
    one, two = kept.keep(episode(1, 40)), kept.keep(episode(2, 40))
    pixels = np.zeros(30, np.uint8)
    assert kept.add(two, ("image", 0), pixels) is not pixels
    assert kept.find(one.record) is None
    assert (two.nbytes, [*two.decoded]) == (70, [("image", 0)])
    assert kept.add(one, ("image", 0), pixels) is pixels
    assert repr(kept) == "<KeptEpisodes: 1, 30 of 100 bytes free>"


def test_an_episode_that_another_thread_has_kept_is_shared() -> None:
    kept = KeptEpisodes(100)
    one = kept.keep(episode(1, 40))
    assert kept.keep(episode(1, 40)) is one
    assert repr(kept) == "<KeptEpisodes: 1, 60 of 100 bytes free>"
