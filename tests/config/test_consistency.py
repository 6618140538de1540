from __future__ import annotations

from typing import Any

import pytest

from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError

SOURCE = {"web": "w/*", "code": ["c/1", "c/2"]}
EVEN = {"web": 0.5, "code": 0.5}


def settings_of(**values: Any) -> DatasetSettings:
    return validate(
        DatasetSettings, {"source": SOURCE, "weights": EVEN, "exhausted": "rest", **values}
    )


def test_components_are_sorted_by_name() -> None:
    settings = settings_of()
    assert list(settings.components.items()) == [("code", ["c/1", "c/2"]), ("web", "w/*")]
    assert settings.urls == ["c/1", "c/2", "w/*"]
    assert settings.weights == [(0, EVEN)]
    plain = validate(DatasetSettings, {"source": "a"})
    assert (plain.components, plain.urls) == ({"": "a"}, ["a"])


def test_they_travel_as_json() -> None:
    settings = settings_of(weights=[(0, EVEN), (7, {"web": 1, "code": 2})])
    again = validate(DatasetSettings, settings.model_dump(mode="json"))
    assert again == settings


@pytest.mark.parametrize(
    "ends",
    [
        {"exhausted": "repeat", "steps_per_epoch": 5},
        {"exhausted": "repeat", "epochs": None},
        {"exhausted": "repeat", "epochs": 3, "steps_per_epoch": 5},
        {"exhausted": "stop"},
    ],
)
def test_ends_that_are_ends(ends: dict[str, Any]) -> None:
    assert settings_of(**ends).exhausted == ends["exhausted"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weights": None}, "'weights' is missing; give a weight to each component: web, code"),
        ({"weights": []}, "'weights' is missing"),
        ({"weights": [(5, EVEN)]}, r"begin at the records \[5\]; let the first begin at 0"),
        ({"weights": [(0, EVEN), (0, EVEN)]}, "each other after the one before it"),
        ({"weights": {"web": 1}}, "names web from record 0 on; name every component: code, web"),
        ({"weights": {}}, "names nothing from record 0 on"),
        ({"weights": {"web": 0, "code": 0}}, "finite weights from 0 up, and at least one above 0"),
        ({"weights": {"web": -1, "code": 2}}, "'weights'"),
        ({"weights": {"web": float("inf"), "code": 2}}, "'weights'"),
        ({"weights": {"web": float("nan"), "code": 2}}, "'weights'"),
        ({"weights": {"web": 0, "code": 2}}, "a component of weight 0 would never end"),
        ({"index": "all.idx"}, "but each component has its own; set index to True"),
        ({"ordered": False}, "'ordered' is False, but a mix takes its components in a fixed order"),
        ({"exhausted": "repeat"}, "has no end by itself; set steps_per_epoch, or epochs to None"),
        ({"epochs": 2}, "a run is one epoch that ends with the components' records"),
        ({"epochs": None}, "leave out epochs and steps_per_epoch"),
        ({"steps_per_epoch": 4}, "leave out epochs and steps_per_epoch"),
        ({"exhausted": "later"}, "'exhausted' is 'later' but must be"),
        ({"source": {}}, "'source' names no shard"),
        ({"source": {"web": "", "code": "c"}}, "'source' names no shard"),
        ({"source": {"": "w", "code": "c"}}, "has a component without a name"),
        ({"source": "w"}, "'weights' has no effect"),
        ({"source": "w", "weights": None}, "'exhausted' has no effect"),
    ],
)
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**values)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"filter": "a:f"}, "a filter runs before it and may change without notice; use transform"),
        ({"map": "a:f"}, "a map runs before it and may change without notice; use transform"),
        ({"ordered": False}, "which ordered=False never makes again"),
        ({"exclude": "x.jsonl"}, "which may hold records that exclude leaves out"),
    ],
)
def test_a_cache_of_batches_keeps_what_settings_alone_determine(
    setting: dict[str, Any], says: str
) -> None:
    values = {"source": "x", **setting}
    for kept in ("ranges", "pictures"):
        validate(DatasetSettings, {**values, "cache": {"of": kept}})
    with pytest.raises(ConfigError, match=rf"the setting 'cache' keeps batches, .*{says}"):
        validate(DatasetSettings, {**values, "cache": {"of": "batches"}})


def test_excluded_records_need_crcs() -> None:
    for values in (
        {"exclude": "x.jsonl"},
        {"check_crc": False},
        {"exclude": [], "check_crc": False},
    ):
        validate(DatasetSettings, {"source": "x", **values})
    with pytest.raises(ConfigError, match=r"'exclude' names .* leave check_crc out"):
        validate(DatasetSettings, {"source": "x", "exclude": "x.jsonl", "check_crc": False})
