from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from streamrec.errors import ConfigError
from streamrec.measure.figures import VERSION, Cell, Figures, read_figures
from tests.measure.form import PAGE, page
from tests.measure.samples import bare, figures

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(figures().model_dump_json())
    assert read_figures(path) == figures()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not hold the figures of a benchmark"),
        ("[" * 100_000, "does not hold the figures of a benchmark"),
        ("[1]", "does not hold the figures of a benchmark"),
        ("1", "does not hold the figures of a benchmark"),
        ('{"a": 1}', "does not hold the figures of a benchmark"),
        ('{"version": 2}', "holds figures of version 2, and this release reads version 1"),
        ('{"version": 1}', "does not have the form of figures .taken: Field required"),
    ],
)
def test_anything_else_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as raised:
        read_figures(path)
    assert str(path) in str(raised.value)


def test_a_wrong_value_is_named_and_not_quoted(tmp_path: Path) -> None:
    whole = json.loads(figures().model_dump_json())
    whole["job"]["samples"][3]["bytes"] = "secret"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match=r"job\.samples\.3\.bytes") as raised:
        read_figures(path)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read .No such file or directory."):
        read_figures(tmp_path / "a.json")


def test_a_file_that_is_too_large_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.measure.figures.MOST_BYTES", 10)
    path = tmp_path / "a.json"
    path.write_text(figures().model_dump_json())
    with pytest.raises(ConfigError, match="larger than any"):
        read_figures(path)


@pytest.mark.parametrize("whole", [figures(), bare()], ids=["whole", "bare"])
def test_the_json_reads_back(whole: Figures) -> None:
    text = whole.model_dump_json()
    assert Figures.model_validate_json(text) == whole
    assert json.loads(text)["version"] == VERSION


def test_the_page_of_the_form_is_true() -> None:
    assert PAGE.read_text() == page(), "python -m tests.measure.form writes the page anew"


def test_other_forms_are_refused() -> None:
    with pytest.raises(ValidationError):
        Figures.model_validate({**figures().model_dump(), "version": 2})


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_number_is_one(number: str) -> None:
    text = figures().model_dump_json().replace('"seconds":60.0', f'"seconds":{number}')
    with pytest.raises(ValidationError):
        Figures.model_validate_json(text)


def test_figures_do_not_change() -> None:
    whole = figures()
    for part in (whole, whole.limits, whole.target):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, next(iter(type(part).model_fields)), None)


def test_a_cell_without_time_has_no_rate() -> None:
    cell = Cell(range_bytes=1, concurrency=1, seconds=0, bytes=9, requests=9)
    assert cell.bytes_per_second == 0
