from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.errors import ConfigError


def test_sizes_are_read_with_their_units() -> None:
    settings = validate(DatasetSettings, {"source": "x", "shuffle_window": "1.5GiB"})
    assert settings.shuffle_window == 3 << 29


@pytest.mark.parametrize("name", ["memory_budget", "max_record_bytes", "shuffle_window"])
@pytest.mark.parametrize("text", ["1GB RAM", "1,5GiB", "2GiB/lane", "1GiB 2GiB", "1 000 000"])
def test_nothing_may_follow_a_unit(name: str, text: str) -> None:
    message = f"the setting '{name}' is '{text}' but must be bytes, such as \"1GiB\""
    with pytest.raises(ConfigError, match=message):
        validate(DatasetSettings, {"source": "x", name: text})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batchsize": 3}, "no setting 'batchsize'; did you mean 'batch_size'?"),
        ({"zzz": 3}, "no setting 'zzz'; there are balance, batch_size, "),
        ({"num_workers": 3}, "no setting 'num_workers': a stream reads ahead by itself"),
        ({"drop_last": True}, "no setting 'drop_last': it is remainder=\"drop\""),
        ({"shuffle": 1000}, "'shuffle' is 1000, but must be True or False; give shuffle=True"),
        ({"batch_size": 0}, "'batch_size' is 0 but must be greater than 0"),
        ({"batch_size": "many"}, "'batch_size' is 'many' but must be a valid integer"),
        ({"seed": -1}, "'seed'"),
        ({"length_buckets": 1}, "'length_buckets' is 1 but must be greater than or equal to 2"),
        ({"length_buckets": 4, "pack": {"length": 8}}, "'length_buckets' has no effect on packs"),
        ({"length_buckets": 4, "ordered": False}, "'length_buckets' needs all lanes in step"),
        ({"balance": {}}, "'balance' must be Balance.feature='tokens'., or its arguments"),
        (
            {"balance": 3},
            "'balance' must be the name of a feature, as .tokens., or a Balance, not 3",
        ),
        ({"balance": {"feature": "a", "x": 1}}, "has 'x', but Balance takes feature, linear"),
        ({"pack": 3}, r"'pack' must be Pack\(length=2048\), or its arguments as"),
        ({"pack": {"length": -1}}, "'pack': a Pack takes integers from 1 up"),
        ({"pack": {"length": 8, "bin": 1}}, "'pack' has 'bin', but Pack takes length, split"),
        ({"window": {"length": 8, "strides": 1}}, "'window' has 'strides', but Window takes"),
        ({"balance": ""}, "'balance': Balance takes the name of a feature"),
        ({"balance": {"feature": "a", "linear": -1}}, "integers from 0 up as linear"),
        ({"balance": {"feature": "a", "linear": float("nan")}}, "integers from 0 up as linear"),
        ({"rename": 3}, "'rename' must map stored names to new ones.* not 3$"),
        ({"rename": {"a": {"b": 3}}}, "'rename' must map stored names to new ones"),
        ({"rename": {"a": "b", "c": {"d": "e"}}}, "'rename' must map stored names to new ones"),
        ({"rename": {3: {"a": "b"}}}, "'rename' is 3 but must be a valid string$"),
        ({"window": 3}, r"'window' must be Window\(length=16\), or its arguments"),
        ({"window": {"length": -1}}, "'window': Window takes integers from 1 up"),
        ({"remainder": "kep"}, "'remainder' is 'kep' but must be 'keep', 'drop' or 'pad'"),
        ({"max_record_bytes": 0}, "'max_record_bytes' is 0 but must be greater than 0 or 'auto'"),
        ({"memory_budget": "1MiB"}, "'memory_budget' is less than the 8 MiB"),
        ({"source": []}, "'source' names no shard"),
        ({"source": ["a", ""]}, "'source' names no shard"),
        (
            {"lanes": 0, "epochs": 0},
            "'lanes' is 0 but must be greater than 0 or 'auto'; the setting 'epochs' is 0",
        ),
    ],
)
def test_every_wrong_setting_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(DatasetSettings, {"source": "x", **values})
    assert "\n" not in str(caught.value)


def test_what_depends_on_a_wrong_setting_is_not_wrong_too() -> None:
    with pytest.raises(ConfigError, match="'ordered'") as caught:
        validate(DatasetSettings, {"source": "x", "length_buckets": 4, "ordered": "perhaps"})
    assert "length_buckets" not in str(caught.value)


def test_a_missing_setting() -> None:
    with pytest.raises(ConfigError, match=r"^the setting 'source' is missing; add it$"):
        validate(DatasetSettings, {})


class TestStrictTypes:
    """Settings given in Python are as strict as those of a file."""

    @pytest.mark.parametrize(
        ("name", "value", "wanted"),
        [
            ("batch_size", "64", "a valid integer"),
            ("batch_size", 64.0, "a valid integer"),
            ("batch_size", True, "a valid integer"),
            ("seed", "1", "a valid integer"),
            ("epochs", "3", "a valid integer"),
            ("lanes", "8", "a valid integer or 'auto'"),
            ("rank", "0", "a valid integer or 'auto'"),
            ("prefetch", "2", "a valid integer or 'auto'"),
            ("stall_timeout", "3", "a valid number"),
            ("shuffle", "yes", "a valid boolean"),
            ("check_crc", "false", "a valid boolean"),
            ("ordered", 1, "a valid boolean"),
            ("restart", "true", "a valid boolean"),
        ],
    )
    def test_a_text_is_no_number(self, name: str, value: object, wanted: str) -> None:
        with pytest.raises(ConfigError) as caught:
            validate(StreamSettings, {"source": "x", name: value})
        assert str(caught.value) == f"the setting {name!r} is {value!r} but must be {wanted}"

    @pytest.mark.parametrize(
        ("name", "value", "read"),
        [
            ("batch_size", np.int64(64), 64),
            ("shuffle", np.bool_(True), True),
            ("stall_timeout", 3, 3.0),
            ("shuffle_window", 1e6, 1_000_000),
            ("shuffle_window", "1MiB", 1 << 20),
            ("source", ("a", "b"), ["a", "b"]),
        ],
    )
    def test_what_means_one_thing_is_taken(self, name: str, value: object, read: object) -> None:
        assert getattr(validate(StreamSettings, {"source": "x", name: value}), name) == read
