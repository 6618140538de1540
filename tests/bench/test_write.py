from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from bench.cases import Case, Failure, Result
from bench.machine import ROOT
from bench.readers.conversions import make_csv, make_pictures, make_text
from bench.readers.writers import FRAME, KINDS, Place, shard_nbytes, write_records
from bench.services import STORE_KEYS, store
from bench.write import (
    WRITERS,
    Settings,
    aims_of,
    as_markdown,
    cases_of,
    conversions_of,
    is_there,
    judge,
    judge_conversion,
    rates,
)
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

if TYPE_CHECKING:
    from pathlib import Path

FEW = 0.0005
"""The size of a hundred small records."""


def cases(place: Place, warm_up: str, kind: str = "small") -> dict[str, Case]:
    settings = Settings(FEW, (kind,), sys.executable, {})
    found = cases_of(place, warm_up, settings)
    return {case.name: case for case in found}


def ran(case: Case) -> dict[str, float]:
    return write_records(dict(case.arguments))


@pytest.mark.parametrize("name", ["columns by block", "ShardedWriter, one by one", "plain files"])
def test_what_is_written_is_checked_and_removed(name: str, tmp_path: Path) -> None:
    case = cases(Place(str(tmp_path / "out")), str(tmp_path / "warm"))[name]
    report = ran(case)
    assert judge(case, report)["records_per_second"] > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_other_records_are_a_failure(tmp_path: Path) -> None:
    case = cases(Place(str(tmp_path / "out")), str(tmp_path / "warm"))["columns by block"]
    report = ran(case)
    more = {**case.arguments, "records": 101}
    with pytest.raises(Failure, match="wrote 100 intact records, where there are 101"):
        judge(Case(case.group, case.name, case.program, more), report)


def test_writers_to_a_store() -> None:
    with store(latency=0.0, bandwidth=None) as served:
        options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        files, _ = shared_filesystem("s3://out", options)
        for bucket in ("out", "warm"):
            files.mkdir(bucket)
        case = cases(Place("s3://out", options), "s3://warm")["ShardedWriter, columns"]
        report = ran(case)
        assert judge(case, report)["megabytes_per_second"] > 0
        assert files.find("out") == files.find("warm") == []


def test_a_peer_that_is_missing_has_a_row(tmp_path: Path) -> None:
    found = cases(Place(str(tmp_path)), str(tmp_path))
    absent = dict.fromkeys(WRITERS.values())
    names = {name for name, case in found.items() if not is_there(case, absent)}
    assert names == set(WRITERS) - {"plain upload, boto3"}
    report = as_markdown([Result(case) for case in found.values()])
    assert "| TensorFlow: not installed" in report


def test_aims_are_ratios_of_one_run(tmp_path: Path) -> None:
    found = cases(Place(str(tmp_path)), str(tmp_path))
    seconds = {"columns by block": 1.0, "encode_example and write": 5.0, "TensorFlow": 20.0}
    results = [
        Result(found[name], [rates({"seconds": cpu, "cpu_seconds": cpu}, 100, 10**6)])
        for name, cpu in seconds.items()
    ]
    assert [(round(aim.measured, 6), aim.met) for aim in aims_of(results) if aim.measured] == [
        (20.0, True),
        (4.0, True),
    ]


@pytest.mark.night
@pytest.mark.parametrize(
    "group", ["folder of pictures, as they are", "text for BERT", "table of CSV"]
)
def test_conversions(group: str, tmp_path: Path) -> None:
    for name in ("all", "few"):
        make_pictures(tmp_path / name / "pictures", 12)
        make_text(tmp_path / name / "text.txt", 12)
        make_csv(tmp_path / name / "table.csv", 12)
    case = next(
        case
        for case in conversions_of(tmp_path, sys.executable)
        if case.group == group and "streamrec" in case.name
    )
    done = subprocess.run(case.command(), cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert judge_conversion(case, report)["records_per_second"] > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_shards(kind: str) -> None:
    columns = KINDS[kind].make(20)
    records = sr.encode_examples(columns)
    assert shard_nbytes(columns) == sum(map(len, records)) + 20 * FRAME
