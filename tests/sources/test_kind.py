from __future__ import annotations

import pytest

from streamrec.errors import ConfigError
from streamrec.sources.kind import Option, SourceKind
from streamrec.sources.opening import KINDS


def open_here(place: str, *, width: int = 1) -> None: ...


def open_anywhere(place: str, *, storage_options: None = None) -> None: ...


def kind(opening: object = open_here) -> SourceKind:
    return SourceKind("k", opening, (".k", ".k.gz"), (Option(name="a_b", help=""),))  # type: ignore[arg-type]


def test_the_opening_tells_whether_a_store_is_read() -> None:
    assert not kind().is_stored
    assert kind(open_anywhere).is_stored
    assert not kind().is_function


def test_suffixes() -> None:
    assert kind().has_suffix("x", "y.k.gz")
    assert not kind().has_suffix("x.gz")
    assert not SourceKind("none", open_here).has_suffix("x")  # type: ignore[arg-type]


def test_options_of_other_kinds_are_refused_as_they_are_typed() -> None:
    every = [Option(name="a_b", help=""), Option(name="types", flag="type", help="")]
    kind().refuse_others(["a_b"], every)
    with pytest.raises(ConfigError, match="--type does not go with a source of the kind k"):
        kind().refuse_others(["a_b", "types"], every)


@pytest.mark.parametrize("name", KINDS)
def test_openings_take_the_options_that_are_declared(name: str) -> None:
    declared = KINDS[name]
    assert declared.name == name
    own = {option.name for option in declared.options}
    given = {"place", "storage_options", "memory", "splits", "function"}
    takes = set(declared.parameters) - given
    if takes & {"table", "form"}:  # a mapping of more of them
        assert own >= takes - {"table", "form"}
    else:
        assert own == takes
