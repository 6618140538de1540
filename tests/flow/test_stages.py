from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.flow.stages import (
    BOXES,
    GROUPS,
    RESOURCES,
    STAGES,
    TABLE,
    Bottleneck,
    Box,
    Group,
    WaitClock,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_consumer_that_waits_is_charged_to_the_producer() -> None:
    clock = Clock()
    waits = WaitClock(clock)
    clock.now = 1.0  # the consumer is the client until it asks
    waits.produce("body")
    clock.now = 3.0
    waits.consume(None)
    clock.now = 6.0
    waits.produce("order")
    clock.now = 10.0
    waits.consume("wire")
    clock.now = 15.0
    assert waits.seconds() == {"client": 3, "body": 3, "order": 4, "wire": 5}


def test_a_wait_inside_belongs_to_its_stage_only_while_the_consumer_waits() -> None:
    clock = Clock()
    waits = WaitClock(clock)
    with waits.waiting_for("decode"):
        clock.now = 1.0
    waits.consume(None)
    with waits.waiting_for("decode"):
        waits.produce("first_byte")
        clock.now = 3.0
    clock.now = 4.0
    assert waits.seconds() == {"client": 1, "decode": 2, "first_byte": 1}


def test_a_thread_tells_afterwards_that_it_went_over_to_another_stage() -> None:
    clock = Clock()
    waits = WaitClock(clock)
    waits.consume(None)
    clock.now = 1.0
    with waits.waiting_for("decode"):
        clock.now = 5.0
        waits.went_over("transform", 2.0)
    clock.now = 6.0
    assert waits.seconds() == {"order": 2, "decode": 1, "transform": 3}


def test_what_a_thread_did_before_anyone_waited_is_not_charged() -> None:
    clock = Clock()
    waits = WaitClock(clock)
    clock.now = 1.0
    waits.went_over("transform", 0.5)  # nobody waits
    waits.consume(None)
    with waits.waiting_for("decode"):
        clock.now = 2.0
        waits.went_over("transform", 0.5)
    assert waits.seconds() == {"client": 1, "transform": 1}


def test_a_consumer_that_goes_on_inside_a_wait_keeps_its_stage() -> None:
    clock = Clock()
    waits = WaitClock(clock)
    waits.consume(None)
    with waits.waiting_for("decode"):
        waits.consume("client")
    clock.now = 1.0
    assert waits.seconds() == {"client": 1}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["produce", "consume"]),
            st.sampled_from(STAGES),
            st.booleans(),
            st.integers(0, 100),
        )
    )
)
def test_the_parts_add_up(changes: list[tuple[str, str, bool, int]]) -> None:
    clock = Clock()
    waits = WaitClock(clock)
    for side, stage, waiting, seconds in changes:
        clock.now += seconds
        if side == "produce":
            waits.produce(stage)
        else:
            waits.consume(None if waiting else stage)
    clock.now += 1
    assert sum(waits.seconds().values()) == pytest.approx(clock.now)


def test_every_stage_is_in_one_box_and_one_group() -> None:
    assert [*BOXES] == [*get_args(Box)]
    assert [stage for box in BOXES.values() for stage in box] == [*STAGES]
    assert {stage.group for stage in TABLE.values()} == GROUPS.keys() == {*get_args(Group)}


def test_every_bottleneck_has_words_and_a_headline() -> None:
    assert [*RESOURCES] == [*get_args(Bottleneck)]
    # Stages may wait for all but these: a whole feeder, and a whole machine.
    assert {one for group in GROUPS.values() for one in group} == {*RESOURCES} - {"feeder", "cores"}


def test_each_word_stands_for_one_thing() -> None:
    for names in (
        [stage.noun for stage in TABLE.values()],
        [stage.awaited for stage in TABLE.values()],
        [stage.meaning for stage in TABLE.values()],
        [resource.words for resource in RESOURCES.values()],
        [resource.headline for resource in RESOURCES.values()],
    ):
        assert all(names)
        assert len(set(names)) == len(names)


def test_a_cause_of_the_engine_has_words_for_a_feeder() -> None:
    causes = [one for one in RESOURCES.values() if one.cause is not None]
    assert len({one.cause for one in causes}) == len(causes) == 3
    assert all(bool(one.meanwhile) == (one.cause is not None) for one in RESOURCES.values())
