from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError, FunctionFailed
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.functions import (
    NONE,
    Function,
    Functions,
    generator_for,
    load,
    name_of,
    takes_generator,
)
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.columns import BytesColumn, Ragged
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import settings_of

MAP = 2


def test_a_generator_is_philox_by_key_and_counter() -> None:
    """The documentation says how, so that others can make the same one."""
    theirs = np.random.Generator(np.random.Philox(key=[7, MAP], counter=[0, 3, 5, 11]))
    ours = generator_for("map", 7, epoch=3, place=5, part=11)
    assert ours.integers(1 << 62, size=9).tolist() == theirs.integers(1 << 62, size=9).tolist()


def test_each_number_gives_another_sequence() -> None:
    places: list[Any] = [("map", 7, 3, 5, 11), ("filter", 7, 3, 5, 11)]
    places += [("map", 8, 3, 5, 11), ("map", 7, 4, 5, 11), ("map", 7, 3, 6, 11)]
    places += [("map", 7, 3, 5, 12), ("map", 7, 5, 3, 11), ("map", (1 << 63) - 1, 0, -1, -1)]
    draws = [generator_for(*place).integers(1 << 62, size=64).tolist() for place in places]
    assert len({number for draw in draws for number in draw}) == 64 * len(places)


class Jitter:
    def __call__(self, columns: Any, rng: Any) -> Any:
        return columns

    def method(self, columns: Any, *, rng: Any = None) -> Any:
        return columns


def test_a_parameter_named_rng_is_given_a_generator() -> None:
    def bound(columns: Any, strength: float, rng: Any) -> Any:
        return columns

    yes: list[Any] = [lambda c, rng: c, lambda c, rng=None: c, Jitter(), Jitter().method]
    yes += [partial(bound, strength=3.0), lambda c, *, rng: c, lambda *c, rng: c]
    assert [takes_generator("map", function, "f") for function in yes] == [True] * len(yes)


def test_others_are_not() -> None:
    no: list[Any] = [
        lambda c: c,
        dict,
        len,
        lambda c, *rest: c,
        lambda c, k=3: c,
        lambda **rng: rng,
    ]
    no += [partial(Jitter(), rng=np.random.default_rng(3)), lambda rng: rng]
    assert [takes_generator("map", function, "f") for function in no] == [False] * len(no)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda columns, generator: columns, "generator"),
        (lambda rng, columns: columns, "columns"),
        (lambda columns, rng, strength: columns, "strength"),
        (lambda columns, rng, /: columns, "rng"),
    ],
)
def test_a_parameter_that_nothing_is_given_for(function: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'map' is m:f, whose parameter '{name}' gets no"):
        takes_generator("map", function, "m:f")


ORIGIN = Origin(np.array([2, 2, 3, -1], np.int32), np.array([7, 8, 0, -1]))
COLUMNS = {"id": np.arange(4)}
URL_OF = ["zero", "one", "two", "three"].__getitem__


class Threshold:
    def __call__(self, columns: Any) -> Any:
        return columns["id"] > 1


class TestNames:
    def test_a_function_a_name_and_an_object(self) -> None:
        assert name_of(user_functions.is_even) == "tests.pipeline.user_functions:is_even"
        assert name_of("a.b:c") == "a.b:c"
        assert name_of(Threshold()) == f"{__name__}:Threshold"
        assert name_of(lambda c: c).endswith("<lambda>")

    def test_found_by_its_name(self) -> None:
        assert load("map", "tests.pipeline.user_functions:squared") is user_functions.squared
        assert load("map", f"{__name__}:Threshold.__call__") is Threshold.__call__

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("no.such.module:f", "importing no.such.module raised ModuleNotFoundError"),
            ("tests.pipeline.user_functions:absent", "has no such function"),
            ("tests.pipeline.user_functions:__doc__", "has no such function"),
        ],
    )
    def test_names_of_nothing(self, name: str, why: str) -> None:
        with pytest.raises(ConfigError, match=f"'filter' names '{name}'.*{why}"):
            load("filter", name)


class TestCalls:
    def test_a_filter_gives_a_mask(self) -> None:
        mask = Function("filter", user_functions.is_even).keep(COLUMNS, ORIGIN, URL_OF)
        assert mask.tolist() == [True, False, True, False]

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            ([True] * 4, "a list"),
            (np.ones(3, bool), r"an array of dtype bool and shape \(3,\)"),
            (np.ones(4, int), "an array of dtype int64"),
            (np.True_, "a bool"),
        ],
    )
    def test_what_is_no_mask(self, result: Any, words: str) -> None:
        with pytest.raises(FunctionFailed, match=f"returned {words}.*boolean array of shape"):
            Function("filter", lambda _: result).keep(COLUMNS, ORIGIN, URL_OF)

    def test_a_map_gives_columns(self) -> None:
        columns = {
            "a": np.zeros((4, 2)),
            "b": BytesColumn.of([b"x"] * 4),
            "c": Ragged(np.arange(3), np.array([0, 1, 1, 2, 3])),
        }
        assert Function("map", lambda _: columns).apply(COLUMNS, ORIGIN, URL_OF) == columns

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (None, "a NoneType; it must return a mapping"),
            ({"a": np.zeros(3)}, "'a' as an array of dtype float64 and shape"),
            ({"a": np.zeros(())}, "'a' as an array"),
            ({"a": np.array(["x"] * 4)}, "'a' as an array of dtype <U1"),
            ({"a": BytesColumn.of([b"x"])}, "'a' as a BytesColumn of 1 rows"),
            ({"a": [1, 2, 3, 4]}, r"'a' as a list; it must return an array, by numpy.array\("),
            ({"a": []}, r"'a' as a list; it must return an array, by numpy.array\("),
            ({"a": ["x"] * 4}, r"'a' as a list; .*BytesColumn.of\(\[text.encode\(\) for text"),
            (
                {"a": (b"x",) * 4},
                r"'a' as a tuple; it must return a column, by .*BytesColumn.of\(\.",
            ),
            ({"a": [np.zeros(2)] * 4}, r"'a' as a list; .*numpy.stack\(.*streamrec.Arrays.of\("),
            ({1: np.zeros(4)}, "1 as an array"),
            (
                {"a": np.ma.masked_array(np.zeros(4))},
                r"'a' as an array.*without a mask, by \.filled",
            ),
            ({"a": np.zeros(4, np.longdouble)}, "'a' as an array.*at most 64 bits"),
            ({"a": Ragged(np.arange(3), np.array([0, 1, 1, 2, 9]))}, "'a' as a Ragged.*row_splits"),
        ],
    )
    def test_what_are_no_columns(self, result: Any, words: str) -> None:
        with pytest.raises(FunctionFailed, match=f"returned {words}"):
            Function("map", lambda _: result).apply(COLUMNS, ORIGIN, URL_OF)

    def test_arrays_are_as_another_process_would_send_them(self) -> None:
        given = {"a": np.broadcast_to(np.ones(1, ">f4"), (4, 1))}
        column: Any = Function("map", lambda _: given).apply(COLUMNS, ORIGIN, URL_OF)["a"]
        assert (column.dtype, column.flags.writeable) == (np.float32, True)

    def test_a_failure_says_which_records_and_keeps_its_cause(self) -> None:
        with pytest.raises(FunctionFailed) as caught:
            Function("map", user_functions.raise_key_error).apply(COLUMNS, ORIGIN, URL_OF)
        error = caught.value
        assert error.fields() == {"setting": "map", "url": "two", "record": 7}
        assert isinstance(error.__cause__, KeyError)
        assert str(error) == (
            "setting map, two, record 7: tests.pipeline.user_functions:raise_key_error raised "
            "KeyError: 'no such "
            "column'; it was called with 3 records, the last of them record 0 of three: mend the "
            "function"
        )

    @pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit])
    def test_what_would_end_more_than_the_function(self, kind: type[BaseException]) -> None:
        """sys.exit would end the engine process, and a cancellation the task that reads."""

        def give_up(_: object) -> None:
            raise kind("mine")

        with pytest.raises(FunctionFailed, match=f"raised {kind.__name__}: mine"):
            Function("filter", give_up).keep(COLUMNS, ORIGIN, URL_OF)

    def test_an_interrupt_is_for_the_program(self) -> None:
        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Function("filter", interrupt).keep(COLUMNS, ORIGIN, URL_OF)

    def test_a_failure_where_all_rows_are_masked(self) -> None:
        nothing = Origin(np.full(2, -1, np.int32), np.zeros(2, np.int64))
        with pytest.raises(FunctionFailed, match="2 rows, none of them a record") as caught:
            Function("transform", user_functions.raise_key_error).apply({}, nothing, URL_OF)
        assert caught.value.fields() == {"setting": "transform"}


def test_those_of_a_dataset() -> None:
    functions = Functions.of(
        settings_of(
            "x",
            filter="tests.pipeline.user_functions:is_even",
            map=user_functions.squared,
            transform=len,
        )
    )
    assert functions.filter is not None
    assert repr(functions.filter) == "<Function tests.pipeline.user_functions:is_even for filter>"
    assert (
        functions.in_lanes
        == "filter tests.pipeline.user_functions:is_even, map tests.pipeline.user_functions:squared"
    )
    assert Functions.of(settings_of("x")) == NONE
    assert NONE.in_lanes == ""


@pytest.mark.parametrize("value", ["no_colon", "a:b:c", 5, "1a:b", ""])
def test_settings_that_are_no_functions(value: object) -> None:
    with pytest.raises(ConfigError, match='must be a function, or "module:function"'):
        settings_of("x", map=value)


def test_a_batch_is_worded() -> None:
    batch: Any = Batch({}, 4, 0, ORIGIN, None)  # type: ignore[arg-type]
    with pytest.raises(FunctionFailed, match="returned a Batch of 4 rows"):
        Function("filter", lambda _: batch).keep(COLUMNS, ORIGIN, URL_OF)
