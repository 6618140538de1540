"""What is refused, and what is not, by each setting that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.config.cache_and_audit import CacheSettings
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe
from streamrec.pipeline.batch.functions import Function, Functions
from streamrec.pipeline.dataset_identity import (
    check_batches,
    check_mapped,
    check_pictures,
    check_places,
    check_ranks,
    uncounting_stage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FILTER: Any = {"features": {"x": sr.FixedLenFeature((), int)}, "filter": len}
PACK: Any = {"features": {"x": sr.RaggedFeature(int)}, "pack": {"length": 8}}
MIX: Any = {
    "source": {"a": "a.tfrecord", "b": "b.tfrecord"},
    "weights": [(0, {"a": 1.0, "b": 1.0})],
}
PICTURE: Any = {"image": sr.Image((2, 2))}


def settings_of(**settings: Any) -> DatasetSettings:
    return DatasetSettings.model_validate({"source": "x.tfrecord", **settings})


def outcome(check: Callable[..., None], *arguments: Any) -> str:
    """Return the first words of a refusal; empty if nothing is refused."""
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("more", "stage"), [({}, ""), (FILTER, "filter"), (PACK, "pack")])
def test_stages_that_make_an_unknown_number_of_rows(more: Any, stage: str) -> None:
    assert uncounting_stage(settings_of(**more)) == stage


@pytest.mark.parametrize(
    ("rank", "world_size", "lanes", "words"),
    [
        (0, 1, 6, ""),
        (2, 3, 6, ""),
        (3, 3, 6, "rank must be from 0 to 2, not 3;"),
        (-1, 3, 6, "rank must be from 0 to 2, not -1;"),
        (0, 4, 6, "world_size 4 does not divide the 6 lanes; these do: 1, 2, 3, 6 (or"),
    ],
)
def test_ranks(rank: int, world_size: int, lanes: int, words: str) -> None:
    said = outcome(check_ranks, settings_of(index=True), lanes, rank, world_size)
    assert said.startswith(words)
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"index": True}, ""),
        ({"epochs": None}, ""),
        ({"steps_per_epoch": 9}, ""),
        ({}, "shards hold different numbers of records, so 2 ranks"),
        ({"index": True, **FILTER}, "filter makes an unknown number of rows"),
        ({"index": True, **PACK}, "pack makes an unknown number of rows"),
        ({"index": True, "epochs": None, **FILTER}, ""),
        ({"exhausted": "stop", **MIX}, "components end at different steps on 2 ranks"),
        ({"exhausted": "stop", "index": True, **MIX}, "components end at different steps"),
        ({"exhausted": "rest", **MIX}, "components end at different steps on 2 ranks"),
        ({"exhausted": "rest", "index": True, **MIX}, ""),
        ({"exhausted": "rest", "index": True, **MIX, **FILTER}, "components end at different"),
        ({"exhausted": "rest", "index": True, "remainder": "pad", **MIX}, 'with exhausted "rest"'),
    ],
)
def test_all_ranks_end_at_the_same_step(more: Any, words: str) -> None:
    settings = settings_of(**{"epochs": 1, **more})
    said = outcome(check_ranks, settings, 6, 0, 2)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    assert ("streamrec index" in said) == (not more)
    assert not outcome(check_ranks, settings, 6, 0, 1), "one rank waits for no other"


@pytest.mark.parametrize(
    ("more", "remainder", "words"),
    [
        ({}, "drop", ""),
        ({}, "pad", 'remainder "pad" fills up batches'),
        ({"ordered": False}, "drop", "ordered=False delivers whole batches alone"),
        ({"transform": len}, "drop", "transform takes whole batches"),
        ({"length_buckets": 8}, "drop", "length_buckets sort records into whole batches"),
        ({"cache": {"of": "batches"}}, "drop", 'a cache of "batches" cannot keep single records'),
        ({"cache": {"of": "ranges"}}, "drop", ""),
    ],
)
def test_single_records(more: Any, remainder: str, words: str) -> None:
    settings = settings_of(**more)
    said = outcome(check_batches, settings, None, remainder)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    assert not outcome(check_batches, settings, 1, remainder)


@pytest.mark.parametrize(
    ("cache", "features", "is_refused"),
    [
        (None, None, False),
        ({"of": "ranges"}, None, False),
        ({"of": "pictures"}, PICTURE, False),
        ({"of": "pictures"}, None, True),
        ({"of": "pictures"}, {"x": sr.FixedLenFeature((), int)}, True),
    ],
)
def test_a_cache_of_pictures_needs_some(cache: Any, features: Any, is_refused: bool) -> None:
    described = None if features is None else describe(features)
    said = outcome(check_pictures, settings_of(cache=cache, features=described))
    assert bool(said) == is_refused


def drawn(columns: Any, rng: Any) -> Any:
    return columns


def plain(columns: Any) -> Any:
    return columns


@pytest.mark.parametrize(
    ("of", "function", "is_refused"),
    [
        ("mapped", drawn, True),
        ("mapped", plain, False),
        ("mapped", None, False),
        ("pictures", drawn, False),
        (None, drawn, False),
    ],
)
def test_a_cache_of_mapped_records_keeps_no_draws(
    of: str | None, function: Any, is_refused: bool
) -> None:
    cache = of and CacheSettings.model_construct(of=of)
    settings = settings_of().model_copy(update={"cache": cache})
    functions = Functions(map=function and Function("map", function))
    assert bool(outcome(check_mapped, settings, functions)) == is_refused


@pytest.mark.parametrize(
    ("more", "batch_size", "is_refused"),
    [
        ({"index": True, "on_corrupt": "skip", "corrupt_budget": 1}, None, True),
        (
            {"index": True, "on_corrupt": "quarantine", "corrupt_budget": 1, "quarantine": "/q"},
            None,
            True,
        ),
        ({"index": True, "on_corrupt": "skip", "corrupt_budget": 1}, 1, False),
        ({"index": True, "on_corrupt": "raise"}, None, False),
        ({"on_corrupt": "skip", "corrupt_budget": 1}, None, False),
        ({"index": True, "exclude": []}, None, True),
        ({"index": True, "exclude": []}, 1, False),
        ({"exclude": []}, None, False),
        ({"index": True, "on_corrupt": "skip", "corrupt_budget": 1, **FILTER}, None, False),
    ],
)
def test_masked_rows_need_batches(more: Any, batch_size: int | None, is_refused: bool) -> None:
    assert bool(outcome(check_places, settings_of(**more), batch_size)) == is_refused
