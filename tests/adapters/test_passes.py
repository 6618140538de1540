"""Iterators over the runs of a stream, as frameworks make and drop them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.adapters.passes import Pairs, Passes, pick
from streamrec.errors import ConfigError, TruncatedShard
from tests.pipeline.small_datasets import identities, write

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path, ((40,) * 9, (30,) * 8))


def opened(source: str, **settings: Any) -> sr.Stream:
    settings = {"batch_size": 4, "lanes": 2, "engine": "thread", **settings}
    return sr.open(source, shuffle=True, shuffle_window=200, **settings)


def run(stream: sr.Stream | Passes) -> list[tuple[int, int]]:
    batches: list[Batch] = list(stream.batches() if isinstance(stream, Passes) else stream)
    return identities(batches)


def test_each_is_a_run(source: str) -> None:
    passes, stream = Passes(opened(source)), opened(source)
    assert [run(passes) for _ in range(3)] == [run(stream) for _ in range(3)]
    assert passes.taken == 15


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_one_that_is_dropped_is_begun_anew(source: str, taken: int) -> None:
    passes, whole = Passes(opened(source)), run(opened(source))
    one = passes.batches()
    assert identities(list(islice(one, taken))) == whole[: 4 * taken]
    assert run(passes) == whole
    if taken:
        with pytest.raises(ConfigError, match="another iterator over this stream has begun"):
            next(one)


def test_one_that_has_given_its_last_batch_has_ended(source: str) -> None:
    """Whoever counts the batches does not ask for the end of the run."""
    passes, stream = Passes(opened(source)), opened(source)
    one = passes.batches()
    assert identities(list(islice(one, 5))) == run(stream)
    assert run(passes) == run(stream)


def test_it_goes_on_with_the_next_run_if_told_to(source: str) -> None:
    passes, stream = Passes(opened(source)), opened(source)
    passes.goes_on = True
    batches = passes.batches()
    whole = [number for _ in range(3) for number in run(stream)]
    assert identities(list(islice(batches, 12))) == whole[:42]
    passes.goes_on = False
    assert identities(list(batches)) == whole[42:]


def test_a_stream_without_a_batch_ends_all_the_same(tmp_path: Path) -> None:
    passes = Passes(opened(write(tmp_path, ((40,),)), lanes=1, remainder="drop"))
    passes.goes_on = True
    assert run(passes) == []


def test_settled_it_goes_on_where_it_stands(source: str) -> None:
    passes, whole = Passes(opened(source)), run(opened(source))
    one = passes.batches()
    next(one)
    next(one)
    passes.settle()
    assert run(passes) == whole[8:]


@pytest.mark.parametrize("taken", [0, 2, 5])
def test_a_stream_that_was_moved_is_followed(source: str, taken: int) -> None:
    first, other = opened(source), opened(source)
    passes = Passes(first)
    list(islice(passes.batches(), taken))
    for one in (first, other):
        one.set_epoch(1)
    assert run(passes) == run(other)


def test_a_resumed_stream_gives_the_rest_of_its_run(source: str) -> None:
    first, whole = opened(source), run(opened(source))
    next(first)
    second = opened(source)
    second.load_state_dict(first.state_dict())
    passes = Passes(second)
    next(passes.batches())
    assert run(passes) == whole[4:]
    assert len(run(passes)) == 17


def test_an_example_is_not_taken(source: str) -> None:
    passes, stream = Passes(opened(source)), opened(source)
    for _ in range(2):
        example = passes.example()
        whole = run(passes)
        assert identities([example]) == whole[:4]
        assert whole == run(stream)


def test_of_no_batch_there_is_no_example(tmp_path: Path) -> None:
    passes = Passes(opened(write(tmp_path, ((),))))
    with pytest.raises(ConfigError, match="no batch"):
        passes.example()
    assert run(passes) == []


def test_an_error_is_raised_at_its_turn(source: str, tmp_path: Path) -> None:
    shard = tmp_path / "part-00001.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-3])
    passes = Passes(sr.open(source, batch_size=4, lanes=1, engine="thread"))
    for _ in range(2):
        one = passes.batches()
        assert len(list(islice(one, 4))) == 4
        with pytest.raises(TruncatedShard):
            next(one)


def test_single_records_are_refused(source: str) -> None:
    passes = Passes(opened(source, batch_size=None))
    for wrong in (passes.example, lambda: next(passes.batches())):
        with pytest.raises(ConfigError, match="single records"):
            wrong()


COLUMNS = {"image": 1, "label": 2, "weight": 3}


@pytest.mark.parametrize(
    ("names", "picked"),
    [
        ("image", 1),
        (["image"], {"image": 1}),
        (("image", "weight"), {"image": 1, "weight": 3}),
        ({"x": "image", "w": "weight", "again": "image"}, {"x": 1, "w": 3, "again": 1}),
        ([], {}),
    ],
)
def test_one_name_gives_a_column_and_several_a_dict(names: Any, picked: Any) -> None:
    assert pick(COLUMNS, names) == picked
    assert Pairs(names, "label").of(COLUMNS) == (picked, 2)
    assert Pairs("label", names).of(COLUMNS) == (2, picked)


def test_what_is_picked_may_be_converted() -> None:
    assert pick(COLUMNS, {"x": "image"}, lambda name, column: (name, column)) == {"x": ("image", 1)}


def test_a_mask_comes_third() -> None:
    assert Pairs("image", "label").of(COLUMNS, "mask") == (1, 2, "mask")


def test_the_features_are_those_of_both() -> None:
    assert Pairs({"x": "image"}, ["label", "weight"]).features == ["image", "label", "weight"]


@pytest.mark.parametrize("names", ["imag", ["image", "imag"], {"image": "imag"}])
def test_other_names_are_refused(names: Any) -> None:
    with pytest.raises(ConfigError, match="no feature 'imag', but image, label, weight; name one"):
        Pairs("label", names).of(COLUMNS)


def test_names_serve_each_batch_again() -> None:
    names: Any = (name for name in ["image"])
    pairs = Pairs.of_arguments(names, {"y": "label"})
    assert pairs is not None
    assert [pairs.of(COLUMNS) for _ in range(2)] == [({"image": 1}, {"y": 2})] * 2


@pytest.mark.parametrize("names", [3, [1], {"x": 1}, {1: "image"}, b"image"])
def test_what_does_not_name_features(names: Any) -> None:
    with pytest.raises(ConfigError, match=r"targets= is .*; give the name of a feature, a list"):
        Pairs.of_arguments("image", names)


def test_a_pair_is_asked_for_by_both() -> None:
    assert Pairs.of_arguments(None, None) is None
    assert Pairs.of_arguments("image", "label") == Pairs("image", "label")
    with pytest.raises(ConfigError, match="inputs= is given without targets="):
        Pairs.of_arguments("image", None)
    with pytest.raises(ConfigError, match="targets= is given without inputs="):
        Pairs.of_arguments(None, "label")
