from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from streamrec.errors import ConfigError
from streamrec.measure.figures import (
    VERSION,
    Cell,
    Figures,
    Sample,
    busy_part,
    has_ramp,
    is_steady,
    mean_rate,
    read_figures,
    requests_of,
    steady_rate,
    used_part,
)
from tests.measure.form import PAGE, page
from tests.measure.samples import bare, figures
from tests.measure.worlds import MB, a_job

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


@pytest.mark.parametrize(
    ("ran", "waited", "busy"),
    [
        (4.0, 4.0, 0.5),
        (9.0, 1.0, None),  # little
        (0.5, 0.5, None),  # of a job that hardly needs a core
        (18.0, 9.0, None),  # its own threads wait for one another
        (8.0, 2.0, 0.2),
        (8.1, 2.0, None),
        (1.0, 1.0, 0.5),
        (0.99, 0.99, None),
        (14.9, 14.9, 0.5),
        (15.0, 15.0, None),  # three quarters of both cores
        (0.0, 0.0, None),
        (None, 1.0, None),
        (1.0, None, None),
        (None, None, None),
    ],
)
def test_others_have_the_cores(ran: float | None, waited: float | None, busy: float | None) -> None:
    job = a_job(seconds=10.0, core_seconds=ran, core_wait_seconds=waited)
    assert busy_part(job, 2) == busy


def test_the_part_of_the_cores() -> None:
    assert used_part(a_job(seconds=10.0, core_seconds=5.0), 4) == 0.125
    assert used_part(a_job(), 4) is None
    assert used_part(a_job(seconds=0.0, core_seconds=5.0), 4) is None
    assert busy_part(a_job(seconds=0.0, core_seconds=5.0, core_wait_seconds=5.0), 4) == 0.5


def test_the_rate_is_that_behind_the_ramp() -> None:
    sizes = [1 * MB] * 2 + [10 * MB] * 4
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    steady = {"seconds": 6.0, "bytes": 42 * MB, "batches": 42}
    assert steady_rate(a_job(samples=samples, **steady)) == 10 * MB
    late = [one.model_copy(update={"at": one.at + 5.0}) for one in samples]
    first = [Sample(at=5.0, seconds=5.0, bytes=0, records=0)]
    later = {**steady, "seconds": 11.0, "first_batch_seconds": 5.0}
    assert steady_rate(a_job(samples=first + late, **later)) == 10 * MB
    job = a_job(seconds=11.0, first_batch_seconds=1.0, batches=101, bytes=101 * MB)
    assert steady_rate(job) == pytest.approx(10 * MB)
    assert steady_rate(a_job(seconds=2.0, batches=1, bytes=10 * MB)) == 5 * MB


def test_an_unsteady_job_has_its_mean_rate() -> None:
    """As its waits, which are those of the whole job."""
    sizes = [60 * MB] * 2 + [MB] * 4
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    job = a_job(seconds=6.0, batches=124, bytes=124 * MB, samples=samples)
    assert not is_steady(job)
    assert steady_rate(job) == mean_rate(job) == pytest.approx(20.5 * MB)


def test_few_batches_behind_the_ramp_tell_no_rate() -> None:
    """Half of the samples of a trainer with steps of two samples have none."""
    samples = [Sample(at=at + 1.0, seconds=1.0, bytes=at % 2 * MB, records=1) for at in range(7)]
    job = a_job(seconds=7.0, first_batch_seconds=1.0, batches=4, bytes=4 * MB, samples=samples)
    assert not has_ramp(job)
    assert steady_rate(job) == mean_rate(job) == MB / 2


def test_an_unfinished_step_is_no_time_of_the_mean_rate() -> None:
    job = {"first_batch_seconds": 1.0, "batches": 4, "bytes": 4 * MB}
    assert mean_rate(a_job(seconds=4.0, **job)) == MB
    assert mean_rate(a_job(seconds=4.9, unfinished_step_seconds=0.9, **job)) == pytest.approx(MB)


def in_flight(*counts: int) -> list[Sample]:
    return [
        Sample(at=at + 1.0, seconds=1.0, bytes=MB, records=1, in_flight=count)
        for at, count in enumerate(counts)
    ]


def test_requests_took_as_long_as_little_says() -> None:
    """Those under way are seen behind the listing alone."""
    samples = in_flight(0, 0, *[40] * 8)
    job = a_job(seconds=12.0, requests=100, bytes=50 * MB, waits={"list": 2.0}, samples=samples)
    assert requests_of(job) == (40, 4.0, MB / 2)


def test_requests_that_were_hardly_seen_tell_nothing() -> None:
    assert requests_of(a_job()) is None
    assert requests_of(a_job(samples=in_flight(*[40] * 5))) is None
    assert requests_of(a_job(samples=in_flight(*[40] * 6))) is not None
    assert requests_of(a_job(samples=in_flight(*[40] * 6), requests=0)) is None
