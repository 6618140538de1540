from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore, FaultRule
from streamrec.flow.stages import STAGES
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits
from streamrec.measure.job import run_job
from streamrec.measure.spans import GROUPS, Spans
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.measure.figures import Job

SHARD = frame(b"x" * 1000) * 8

lengths = st.tuples(st.integers(0, 1000), st.integers(0, 300))


def same(batch: Any) -> dict[str, Any]:
    return dict(batch)


async def traced(spans: Spans | None, **values: Any) -> Job:
    """Read shards, one of them compressed; the first request of each is refused once."""
    with DevStore(faults=[FaultRule(ranged=True, first=1, status=503)]) as store:
        for number in range(2):
            store.objects[f"bucket/part-{number}"] = SHARD
        store.objects["bucket/part-2"] = gzip.compress(SHARD)
        given = {
            "source": "s3://bucket/part-*",
            "storage_options": store.storage_options,
            "batch_size": 4,
            "memory_budget": "32MiB",
            "transform": same,
            **values,
        }
        budget = Budget(Limits(seconds=60, bytes=1 << 30, requests=1000))
        settings = validate(DatasetSettings, given)
        return await run_job(settings, budget, seconds=30, step_seconds=1e-3, spans=spans)


def events_of(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def check_rows(trace: dict[str, Any]) -> None:
    """Check that the events of each row follow each other, or lie in each other."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events_of(trace, "X"):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in rows.values():
        ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)


@asynchronous
async def test_a_job_s_trace(tmp_path: Path) -> None:
    spans = Spans()
    job = await traced(spans)
    (tmp_path / "trace.json").write_text(spans.to_json())
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_rows(trace)
    found = {(event["cat"], event["name"]) for event in events_of(trace, "X")}
    assert found >= {
        *{("request", name) for name in ("list", "request", "retry", "first_byte", "body")},
        *{("lane", "scan"), ("lane", "decompress"), ("trainer", "step")},
        *{("batch", "decode"), ("batch", "transform")},
        *{("wait", "list"), ("wait", "client")},
    }
    assert {name for track, name in found if track == "wait"} <= set(STAGES)
    titles = [
        event["args"]["name"] for event in events_of(trace, "M") if event["name"] == "process_name"
    ]
    assert titles == [title for title, _ in GROUPS.values()]
    steps = [event for event in events_of(trace, "X") if event["name"] == "step"]
    assert len(steps) == job.batches
    waits = sum(event["dur"] for event in events_of(trace, "X") if event["cat"] == "wait")
    assert waits / 1e6 == pytest.approx(job.seconds, rel=0.02, abs=0.05)


@asynchronous
async def test_urls_show_no_secrets() -> None:
    spans = Spans()
    spans.add("request", "request", 0, 1, url="https://me:secret@host/part?X-Amz-Signature=secret")
    assert "secret" not in json.dumps(spans.to_dict())


@given(st.lists(lengths))
def test_no_two_requests_share_a_connection(requests: list[tuple[int, int]]) -> None:
    spans = Spans()
    for began, length in requests:
        spans.add("request", "request", began, began + length, first_byte=began + length / 2)
    check_rows(spans.to_dict())
    most = max(
        (sum(b <= at < b + n or (b == at and not n) for b, n in requests) for at, _ in requests),
        default=0,
    )
    assert len(spans.rows()) <= max(most, 1) or not requests


def test_waits_for_one_stage_are_one_span() -> None:
    spans = Spans()
    for began, stage in enumerate(["body", "body", "order", "body"]):
        spans.add("wait", stage, began, began + 1)
    (row,) = spans.rows().values()
    assert [(s.name, s.began, s.ended) for s in row] == [
        ("body", 0, 2),
        ("order", 2, 3),
        ("body", 3, 4),
    ]


def test_too_many_are_counted() -> None:
    spans = Spans(most=2)
    for at in range(5):
        spans.add("trainer", "step", at, at + 1)
    assert (len(spans.all), spans.left_out) == (2, 3)
    assert spans.to_dict()["otherData"] == {"spans_left_out": 3}


def test_an_empty_trace() -> None:
    assert Spans().to_dict()["traceEvents"] == []
