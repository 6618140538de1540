from __future__ import annotations

import copy
import math
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config import DatasetSettings, Pack, StreamSettings, validate
from streamrec.config.cache_and_audit import CacheSettings
from streamrec.config.lazy_settings import LazySettings, jsonable, meanings, read_plainly
from streamrec.config.validation import judge
from streamrec.errors import ConfigError
from streamrec.feeder.client.welcome import _Facts
from streamrec.streams.start import FeederSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 7, -1, 1 << 16, (1 << 16) + 1, 4096, 8 << 20, 16 << 20),
    *(1 << 62, (1 << 63) - 1, 1 << 63, 10**400, 0.0, 0.25, 1.0, 2.0, -0.5, 1e7, 1e8, math.inf),
    *("", "x", "auto", "infer", "none", "GZIP", "zstd", "keep", "drop", "pad", "rest", "stop"),
    *(
        "repeat",
        "raise",
        "skip",
        "process",
        "thread",
        "1GiB",
        "4 MiB",
        "1MB",
        "16MiB",
        "memory",
        "ranges",
        "\ud800",
    ),
    *([], ["x"], [""], ["x", 1], {}, {"a": "x"}, {"a": ["x"]}, {"": "x"}, {"a": 1}, {"\udc00": 1}),
    *(("x", "y"), {"a": "x", "b": ["y", "z"]}, {1: 2}, {"size": "1GiB"}, {"of": "mapped"}),
    *({"folder": "f", "of": "pictures"}, {"key": "k"}, {"length": 8}, {"length": 8, "split": 1}),
    *({"length": {"a": 4}, "padding": 3}, {"length": "8"}, Pack(8), "app:f", "no function", len),
    *([(0, {"a": 1.0})], [[0, {"a": 1, "b": 0}]], [(0, {"a": -1.0})], [(0.0, {"a": 1.0})]),
    *({"length": True}, {"length": {"a": True}}, {"length": 8, "bins": True}),
    *({"length": 8, "documents": True}, MappingProxyType({"of": "ranges"}), {"length": 8.0}),
    *({"a": 0.5}, b"x", {1}, Path("f"), CacheSettings(size=16 << 20)),
]
MODELS: dict[type[LazySettings], dict[str, Any]] = {
    StreamSettings: {"source": "x", "features": "infer"},
    CacheSettings: {},
    FeederSettings: {
        **dict.fromkeys(FeederSettings.defaults),
        "address": "tcp://a:1/x",
        "rank": "auto",
        "world_size": 4,
        "stall_timeout": 1.0,
        "connect_timeout": 2.0,
        "retry_for": 0.0,
        "replicas": False,
        "restart": False,
    },
    _Facts: {
        "batch_size": 8,
        "lanes": 4,
        "shard_count": 1,
        "shards": ["x"],
        "features": None,
        "remainder": "keep",
    },
}


def shown(settings: LazySettings) -> list[tuple[str, type, Any]]:
    """Return the values with their types: 1 is not True, and 1 not 1.0."""
    return [(name, _kind(value), _plain(value)) for name, value in settings]


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, Pack) else value


def _kind(value: Any) -> Any:
    # pydantic's bytes are of a type of its own.
    return int if type(value).__name__ == "ByteSize" else type(value)


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model in MODELS for name in model.defaults]
)
def test_pydantic_takes_what_is_plainly_right_as_it_is(
    model: type[LazySettings], name: str
) -> None:
    taken = 0
    for value in VALUES:
        values = {**MODELS[model], name: value}
        if (plain := read_plainly(model, values)) is not None:
            taken += 1
            judged = judge(model, values)
            assert shown(model.model_construct(**plain)) == shown(judged), (name, value)
    # Else a setting that many programs have would import pydantic.
    assert taken or name in {"pack", "weights", "fingerprint", "key"}


@given(st.dictionaries(st.sampled_from([*StreamSettings.defaults]), st.sampled_from(VALUES)))
def test_settings_together_are_what_pydantic_makes_of_them(more: dict[str, Any]) -> None:
    values = {"source": "x", **more}
    if (plain := read_plainly(StreamSettings, values)) is not None:
        assert shown(StreamSettings.model_construct(**plain)) == shown(
            judge(StreamSettings, values)
        )


MIX = {"source": {"a": "x", "b": "y"}, "epochs": None}


@pytest.mark.parametrize(
    "values",
    [
        {"cache": "4GiB"},
        {"cache": {"of": "batches", "folder": "memory"}},
        {"compression": "GZIP", "features": {"x": {"kind": "fixed"}}, "dtypes": "float32"},
        {"filter": "app:f", "map": len, "shuffle": True, "seed": 3, "shuffle_window": "1GiB"},
        {"pack": Pack(8, bins=4), "stall_timeout": 30, "index": True, "storage_options": {"a": 1}},
        {"pack": {"length": {"a": 4}, "split": True}},
        {**MIX, "weights": [(0, {"a": 0.5, "b": 1})]},
        {**MIX, "weights": [[0, {"a": 0.5, "b": 1}], [8, {"a": 0.0, "b": 1.0}]]},
    ],
)
def test_what_many_programs_set_is_plainly_right(values: dict[str, Any]) -> None:
    plain = read_plainly(StreamSettings, {"source": "x", **values})
    assert plain is not None
    settings = StreamSettings.model_construct(**plain)
    assert shown(settings) == shown(judge(StreamSettings, {"source": "x", **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"source": "x", "batch_size": "3"},
        {"source": "x", "batchsize": 3},
        {"source": "x", "pack": Pack(8), "length_buckets": 4},
        {"batch_size": 3},
    ],
)
def test_what_may_be_wrong_is_left_to_pydantic(values: dict[str, Any]) -> None:
    assert read_plainly(StreamSettings, values) is None
    with pytest.raises(ConfigError):
        validate(StreamSettings, values)


def test_pydantic_is_imported_only_where_it_judges() -> None:
    code = """if True:
        import sys
        from streamrec.config import StreamSettings, validate
        validate(StreamSettings, {"source": "x", "cache": "4GiB", "storage_options": {"a": 1}})
        print("pydantic" in sys.modules)
        validate(StreamSettings, {"source": "x", "epochs": float("inf")})
        print("pydantic" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


SECRET = {"storage_options": {"key": "secret"}}


def pickled(settings: DatasetSettings) -> Any:
    return pickle.loads(pickle.dumps(settings))


def test_they_are_frozen() -> None:
    settings: Any = DatasetSettings(source="x")
    with pytest.raises(AttributeError, match="settings are frozen; 'source' cannot be set"):
        settings.source = "y"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_is_equal(again: Any) -> None:
    settings = validate(DatasetSettings, {"source": "x", "cache": "4GiB", **SECRET})
    assert again(settings) == settings
    assert "secret" not in repr(again(settings))


def test_others_are_not_equal() -> None:
    assert DatasetSettings(source="x") != DatasetSettings(source="y")
    assert DatasetSettings(source="x") != StreamSettings(source="x")


def test_a_secret_is_not_shown() -> None:
    settings = validate(FeederSettings, {**MODELS[FeederSettings], "token": "secret"})
    assert "secret" not in repr(settings)
    assert settings.token == "secret"


def test_nobody_shares_a_list_of_defaults() -> None:
    class Listed(LazySettings):
        places: list[str] = []  # noqa: RUF012 - it is copied

    Listed().places.append("x")
    assert Listed().places == Listed.model_construct().places == []


def test_the_plain_form_is_that_of_pydantic() -> None:
    settings = validate(DatasetSettings, {"source": "x", "cache": "4GiB", "pack": {"length": 8}})
    assert settings.cache is not None
    assert jsonable(settings.cache) == settings.cache.model_dump(mode="json")
    assert jsonable(settings.pack) == settings.model_dump(mode="json")["pack"]


def test_every_setting_has_a_meaning() -> None:
    assert set(meanings(StreamSettings)) == set(StreamSettings.model_fields)


@pytest.mark.parametrize("function", [sr.open, sr.mix])
def test_help_lists_each_setting_with_its_default(function: Callable[..., Any]) -> None:
    said = pydoc.plain(pydoc.render_doc(function))
    named = {"source", "features", "batch_size", "weights"}
    named |= {"exhausted"} if function is sr.open else set()
    for name, field in StreamSettings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        assert name in named or f"\n    {name} = {default!r}: " in said
    assert "seed = 0: The seed of all that is random" in said


def test_help_names_the_values_that_a_setting_can_have() -> None:
    for name, meaning in meanings(StreamSettings).items():
        for value in literals(StreamSettings.model_fields[name].annotation):
            assert value in {"auto", "infer"} or f'"{value}"' in meaning


def literals(annotation: Any) -> Iterator[str]:
    """Return the texts that a setting can be."""
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
    else:
        for part in get_args(annotation):
            yield from literals(part)


@pytest.mark.parametrize("function", [sr.open, sr.mix, sr.connect])
def test_help_names_nothing_that_an_installation_lacks(function: Callable[..., Any]) -> None:
    said = pydoc.plain(pydoc.render_doc(function))
    assert "docs/" not in said
    assert ":class:" not in said
    assert ":func:" not in said
