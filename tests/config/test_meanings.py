from __future__ import annotations

import pydoc
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest

import streamrec as sr
from streamrec.config import StreamSettings
from streamrec.config.meanings import meanings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
