from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from streamrec.config.environment import overrides
from streamrec.config.server_settings import ServerSettings
from streamrec.config.validation import Settings


class Table(Settings):
    cert: str
    size: int = 0


class Server(Settings):
    names: list[str] = Field(default=[])
    tls: Table | None = None
    tables: dict[str, Table] = Field(default={})
    number: float = 1.0
    count: int | None = None
    is_on: bool = False


def changed(values: dict[str, Any], **variables: str) -> Any:
    new, _, faults = overrides(Server, values, variables, "X_")
    assert faults == []
    return new


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("X_NAMES", "a, b", {"names": ["a", "b"]}),
        ("X_NAMES", '["a,b", "c"]', {"names": ["a,b", "c"]}),
        ("X_NAMES", "a", {"names": ["a"]}),
        ("X_NUMBER", "3", {"number": 3}),
        ("X_COUNT", "many", {"count": "many"}),
        ("X_COUNT", "null", {"count": "null"}),
        ("X_IS_ON", "true", {"is_on": True}),
        ("X_TLS", '{"cert": "c"}', {"tls": {"cert": "c"}}),
        ("X_TLS__CERT", "12", {"tls": {"cert": "12"}}),
        ("X_TLS__SIZE", "12", {"tls": {"size": 12}}),
        ("X_TABLES__ONE__SIZE", "12", {"tables": {"one": {"size": 12}}}),
    ],
)
def test_a_variable(variable: str, text: str, value: Any) -> None:
    assert changed({}, **{variable: text}) == value


def test_what_is_not_overridden_stays_and_nothing_is_changed_in_place() -> None:
    values = {"number": 2, "tls": {"cert": "a", "size": 1}}
    assert changed(values, X_TLS__SIZE="2", HOME="/", X="1") == {
        "number": 2,
        "tls": {"cert": "a", "size": 2},
    }
    assert values["tls"] == {"cert": "a", "size": 1}


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("X_NUMBRE", "X_NUMBRE names no setting; did you mean 'X_NUMBER'?"),
        ("X_ZZZZZZ", "there are X_COUNT, X_IS_ON,"),
        ("X_TLS__KEY", "X_TLS__KEY names no setting"),
        ("X_NUMBER__A", "names no setting"),
    ],
)
def test_one_that_names_nothing_is_refused(variable: str, words: str) -> None:
    values, names, (fault,) = overrides(Server, {}, {variable: "1"}, "X_")
    assert (values, names) == ({}, {})
    assert words in fault


@pytest.mark.parametrize(
    "name",
    ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_FEEDER", "PORT", "PORT_7070_TCP_ADDR"],
)
def test_those_of_a_kubernetes_service_are_none(name: str) -> None:
    assert overrides(Server, {}, {f"X_{name}": "1"}, "X_") == ({}, {}, [])


def test_a_table_that_is_none_is_left_to_the_validation() -> None:
    assert overrides(Server, 3, {"X_NUMBER": "1"}, "X_")[0] == 3


def test_every_setting_of_the_server_has_a_variable() -> None:
    variables = {f"S_{name.upper()}": "1" for name in ServerSettings.model_fields}
    _, names, faults = overrides(ServerSettings, {}, variables, "S_")
    assert set(names.values()) == set(variables)
    assert faults == []


@given(st.lists(st.text()), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_json_is_read_back(names: list[str], number: float, is_on: bool) -> None:
    values = {"names": names, "number": number, "is_on": is_on}
    variables = {f"X_{name.upper()}": json.dumps(value) for name, value in values.items()}
    assert changed({}, **variables) == values
