from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from bench.machine import ROOT
from bench.measure import Case, Failure, Result
from bench.services import STORE_KEYS, store
from bench.write import targets
from bench.writing import writers
from bench.writing.bert import make_text
from bench.writing.cases import PEERS, cases_of, conversions_of, is_there
from bench.writing.conversions import make_csv, make_pictures
from bench.writing.judging import judge, judge_conversion, rates
from bench.writing.kinds import FRAME, KINDS, shard_nbytes
from bench.writing.place import Place
from bench.writing.tables import as_markdown
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

if TYPE_CHECKING:
    from pathlib import Path

FEW = 0.0005
"""The size of a hundred small records."""


def cases(place: Place, warm_up: str, kind: str = "small") -> dict[str, Case]:
    found = cases_of(place, warm_up, [kind], FEW, sys.executable)
    return {case.name: case for case in found}


def ran(case: Case, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, float]:
    monkeypatch.setattr(sys, "argv", ["writers", json.dumps(dict(case.arguments))])
    writers.main()
    report: dict[str, float] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("name", ["columns by block", "ShardedWriter, one by one", "plain files"])
def test_what_is_written_is_checked_and_removed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    case = cases(Place(str(tmp_path / "out")), str(tmp_path / "warm"))[name]
    report = ran(case, monkeypatch, capsys)
    assert judge(case, report)["records_per_second"] > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_other_records_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    case = cases(Place(str(tmp_path / "out")), str(tmp_path / "warm"))["columns by block"]
    report = ran(case, monkeypatch, capsys)
    more = {**case.arguments, "records": 101}
    with pytest.raises(Failure, match="wrote 100 intact records, where there are 101"):
        judge(Case(case.group, case.name, case.module, more), report)


def test_writers_to_a_store(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with store(latency=0.0, bandwidth=None) as served:
        options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        files, _ = shared_filesystem("s3://out", options)
        for bucket in ("out", "warm"):
            files.mkdir(bucket)
        case = cases(Place("s3://out", options), "s3://warm")["ShardedWriter, columns"]
        report = ran(case, monkeypatch, capsys)
        assert judge(case, report)["megabytes_per_second"] > 0
        assert files.find("out") == files.find("warm") == []


def test_a_peer_that_is_missing_has_a_row(tmp_path: Path) -> None:
    found = cases(Place(str(tmp_path)), str(tmp_path))
    absent = dict.fromkeys(PEERS.values())
    names = {name for name, case in found.items() if not is_there(case, absent)}
    assert names == set(PEERS) - {"plain upload, boto3"}
    report = as_markdown([Result(case) for case in found.values()])
    assert "| TensorFlow: not installed" in report


def test_aims_are_ratios_of_one_run(tmp_path: Path) -> None:
    found = cases(Place(str(tmp_path)), str(tmp_path))
    seconds = {"columns by block": 1.0, "encode_example and write": 5.0, "TensorFlow": 20.0}
    results = [
        Result(found[name], [rates({"seconds": cpu, "cpu_seconds": cpu}, 100, 10**6)])
        for name, cpu in seconds.items()
    ]
    assert [(round(aim.measured, 6), aim.met) for aim in targets(results)] == [
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
    command = [sys.executable, "-m", case.module, json.dumps(dict(case.arguments))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert judge_conversion(case, report)["records_per_second"] > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_shards(kind: str) -> None:
    columns = KINDS[kind].make(20)
    records = sr.encode_examples(columns)
    assert shard_nbytes(columns) == sum(map(len, records)) + 20 * FRAME
