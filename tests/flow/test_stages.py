from __future__ import annotations

from typing import get_args

from streamrec.flow.stages import BOXES, GROUPS, RESOURCES, STAGES, TABLE, Bottleneck, Box, Group


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
