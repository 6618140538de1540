from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING

from streamrec.feeder.access.address import Address
from streamrec.feeder.client import moves
from streamrec.feeder.client.moves import Moves

if TYPE_CHECKING:
    from collections.abc import Sequence


def machines(*numbers: int) -> list[Address]:
    return [Address("feeders", 7070, dataset="train", ip=f"10.0.0.{n}") for n in numbers]


class Names:
    """Names that stand for other machines from look to look."""

    def __init__(self, *answers: Sequence[Address]) -> None:
        self._answers = [*answers]
        self.looked = threading.Event()

    def look(self) -> Sequence[Address]:
        self.looked.set()
        return self._answers.pop(0)


def after_looks(names: Names, count: int, known: Sequence[Address]) -> list[list[Address] | None]:
    """Return what is told after each of so many looks."""
    watched = Moves(names.look, Random(1))
    watched.know(known)
    told: list[list[Address] | None] = []
    now = 0.0
    assert watched.changed(now) is None  # it has just been looked up, for the connection
    for _ in range(count):
        now += 2 * moves.EVERY
        assert watched.changed(now) is None  # it does not wait for the look
        assert names.looked.wait(10)
        names.looked.clear()
        for thread in threading.enumerate():
            if thread.name == "streamrec-look":
                thread.join(10)
        found = watched.changed(now)
        told.append(None if found is None else list(found))
    return told


def test_a_fleet_that_stays_as_it_is_moves_nobody() -> None:
    same = machines(1, 2)
    assert after_looks(Names(same, same, same), 3, same) == [None, None, None]


def test_a_fleet_that_has_grown_or_shrunk_counts_at_the_second_look() -> None:
    for new in (machines(1, 2, 3), machines(1)):
        assert after_looks(Names(new, new), 2, machines(1, 2)) == [None, new]


def test_a_feeder_in_place_of_another_moves_nobody_but_counts_from_then_on() -> None:
    new, more = machines(1, 3), machines(1, 3, 4)
    names = Names(new, new, more, more)
    assert after_looks(names, 4, machines(1, 2)) == [None, None, None, more]


def test_names_that_stand_for_some_of_many_feeders_move_nobody() -> None:
    answers = [machines(1, 2, 3), machines(2, 3, 4), machines(2, 3, 4), machines(1, 2, 4)] * 3
    assert after_looks(Names(*answers), 12, machines(1, 2, 3)) == [None] * 12


def test_a_feeder_that_is_not_ready_for_a_moment_moves_nobody() -> None:
    all_three, two = machines(1, 2, 3), machines(1, 2)
    names = Names(two, all_three, two, all_three)
    assert after_looks(names, 4, all_three) == [None] * 4


def test_names_that_cannot_be_looked_up_say_nothing() -> None:
    unknown = [Address("feeders", 7070, dataset="train")]
    assert after_looks(Names(unknown, unknown), 2, machines(1)) == [None, None]


def test_between_looks_nothing_is_asked() -> None:
    names = Names()
    watched = Moves(names.look, Random(1))
    watched.know(machines(1))
    for now in (0.0, 1.0, 0.4 * moves.EVERY):
        assert watched.changed(now) is None
    assert not names.looked.is_set()
