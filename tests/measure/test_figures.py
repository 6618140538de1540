from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from streamrec.measure.figures import VERSION, Cell, Figures
from tests.measure.form import PAGE, page
from tests.measure.samples import bare, figures


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


def test_a_cell_without_time_has_no_rate() -> None:
    cell = Cell(range_bytes=1, concurrency=1, seconds=0, bytes=9, requests=9)
    assert cell.bytes_per_second == 0
