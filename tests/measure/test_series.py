from __future__ import annotations

from streamrec.measure.figures import Sample
from streamrec.measure.series import MOST, series_of
from tests.measure.samples import figures


def test_a_job_has_a_line_for_bytes_records_and_requests() -> None:
    job = figures().job
    assert job
    lines = series_of(job)
    assert [line.title for line in lines] == ["Bytes", "Records", "Requests under way"]
    assert [line.mean for line in lines] == ["467.4 MB/s", "4,237 records/s", "15 requests"]
    assert all(len(line.values) == len(job.samples) for line in lines)
    assert lines[0].texts[3].endswith("/s, until 1.0 s")
    assert lines[0].end == "20.0 s"


def test_many_samples_are_put_together_and_a_gap_stays_one() -> None:
    job = figures().job
    assert job
    samples = [
        Sample(at=i / 100, seconds=0.01, bytes=10_000, records=0)
        for i in range(1, 2001)
        if not 500 < i <= 1000
    ]
    line, _ = series_of(job.model_copy(update={"samples": samples}))
    assert len(line.values) == MOST
    gap = line.values[MOST // 4 : MOST // 2]
    assert set(gap) == {None}
    assert {round(value) for value in line.values if value is not None} == {1_000_000}
    assert line.texts[MOST // 4].startswith("nothing, until ")


def test_without_samples_there_is_no_line() -> None:
    job = figures().job
    assert job
    assert series_of(job.model_copy(update={"samples": []})) == []
