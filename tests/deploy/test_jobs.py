"""The jobs of deploy/kubernetes/jobs: by their makers' models, and the feeder's shell for real."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import streamrec as sr
from tests.deploy.dockerfile import ROOT
from tests.deploy.models import check

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "deploy" / "kubernetes" / "jobs"
FILES = sorted(FOLDER.glob("*.yaml"))
OBJECTS = [one for path in FILES for one in yaml.safe_load_all(path.read_text())]
SET = next(one for one in OBJECTS if one["metadata"]["name"] == "train" and one["kind"] == "JobSet")
JOBS = {job["name"]: job for job in SET["spec"]["replicatedJobs"]}


def pod(job: Any) -> Any:
    return job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "found", OBJECTS, ids=lambda found: f"{found['kind']}-{found['metadata']['name']}"
)
def test_it_fits_its_schema(found: Any) -> None:
    check(found)


def test_the_trainers_wait_for_the_feeders_and_decide_alone() -> None:
    assert JOBS["trainers"]["dependsOn"] == [{"name": "feeders", "status": "Ready"}]
    assert SET["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainers"]
    (service,) = [one for one in OBJECTS if one["kind"] == "Service"]
    assert service["spec"]["selector"] == {
        "jobset.sigs.k8s.io/jobset-name": SET["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": "feeders",
    }
    (trainer,) = pod(JOBS["trainers"])["containers"]
    (feeders,) = [one["value"] for one in trainer["env"] if one["name"] == "FEEDERS"]
    assert feeders == f"tcp://{service['metadata']['name']}:7070/train"


def test_the_programs_of_trainers_are_programs() -> None:
    programs = [
        container["args"][0]
        for one in OBJECTS
        if one["kind"] == "JobSet"
        for job in one["spec"]["replicatedJobs"]
        for container in pod(job)["containers"]
        if container["command"] == ["python", "-c"]
    ]
    assert len(programs) == 2
    for program in programs:
        compile(program, "trainer", "exec")


def test_a_feeder_that_is_drained_ends_as_a_failure(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "train.tfrecord") as writer:
        writer.write({"x": 1})
    configuration = tmp_path / "feeder.toml"
    configuration.write_text(
        '[server]\nlisten = ["tcp://127.0.0.1:0"]\nstatus = ""\ngrace = 1.0\n'
        f'[datasets.train]\nsource = "{tmp_path}/train.tfrecord"\n'
    )
    (feeder,) = pod(JOBS["feeders"])["containers"]
    assert feeder["command"] == ["sh", "-c"]
    serve = f"{sys.executable} -m streamrec serve {configuration} --json"
    script = feeder["args"][0].replace("streamrec serve /etc/streamrec/feeder.toml", serve)
    command = [*feeder["command"], script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        assert "tcp://" in one.stdout.readline()
        one.send_signal(signal.SIGTERM)
        _, log = one.communicate(timeout=60)
    assert one.returncode == 1  # with 0, its Job would be done, and would not replace it
    assert "drain" in log
