from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.cases import Failure, Result
from bench.dlio.__main__ import as_markdown, case, judge
from bench.dlio.workloads import READERS, WORKLOADS
from bench.services import Served

RESNET = WORKLOADS[0]
STREAMREC = READERS[0]
SERVED = Served("http://127.0.0.1:1", 1)


def report(steps: int) -> dict[str, Any]:
    return {
        "utilisation": [91.0],
        "samples_per_second": [1500.0],
        "first_batch_seconds": [0.5],
        "steps": [steps],
        "cpu_seconds": 2.0,
        "store": {"requests": 7, "bytes_sent": 3_000_000},
    }


def test_a_case_of_local_files_names_their_folder_and_the_plugin() -> None:
    one = case("local files", None, RESNET, STREAMREC, "python", Path("/data"))
    overrides = one.arguments["overrides"]
    assert overrides[0] == "workload=resnet50_h100"
    assert "++workload.dataset.data_folder=/data/mlperf/resnet50_h100-8x800" in overrides
    assert "++workload.reader.reader_classname=bench.dlio.plugin.StreamrecReader" in overrides
    assert not one.environment


def test_a_case_of_the_store_names_the_bucket_and_the_endpoint() -> None:
    one = case("object store", SERVED, RESNET, STREAMREC, "python", Path("/data"))
    assert "++workload.storage.storage_root=mlperf" in one.arguments["overrides"]
    assert one.environment["AWS_ENDPOINT_URL"] == one.environment["S3_ENDPOINT"] == SERVED.endpoint


def test_a_run_that_made_every_step_becomes_a_row() -> None:
    one = case("object store", SERVED, RESNET, STREAMREC, "python", Path("/data"))
    found = judge(one, report(RESNET.steps))
    assert found["store_megabytes"] == 3.0
    text = as_markdown([Result(one, [found, {**found, "utilisation": 93.0}])])
    assert "resnet50_h100, object store: 16 steps of 400 x 0.11 MB, 224 ms each" in text
    assert "91.0 to 93.0" in text


def test_a_run_that_left_steps_out_failed() -> None:
    one = case("local files", None, RESNET, STREAMREC, "python", Path("/data"))
    with pytest.raises(Failure, match="made 15 steps, where there are 16"):
        judge(one, report(RESNET.steps - 1))
