"""The image, made by the Dockerfile's steps in a chroot, and the compose file's services in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest
import yaml

from tests.deploy import chroot
from tests.deploy.chroot import Image, Pod, first_process
from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Container = subprocess.Popen[str]

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(chroot.missing() is not None, reason=f"no chroot: {chroot.missing()}"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("image"),
]
LATE = 60.0
"""Seconds after which a container hangs."""
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
NAMES = "127.0.0.1 localhost s3 feeder\n"
KEYS = COMPOSE["x-credentials"]


@pytest.fixture
def pod(tmp_path: Path, image: Image) -> Iterator[Pod]:
    shared = tmp_path / "run"
    directory = shared / "streamrec"
    directory.mkdir(parents=True)
    image.inside("/etc/hosts").write_text(NAMES)
    user, group = map(int, image.user.split(":"))
    os.chown(directory, user, group)
    pod = Pod(shared)
    yield pod
    pod.close()


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[Container]:
    """Run a command in a process of its own, and kill it if it still runs at the end."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(command: list[str]) -> tuple[int, str]:
    """Run a command to its end; return its exit code and what it wrote."""
    with running(command) as process:
        output, _ = process.communicate(timeout=LATE)
        return process.returncode, output


def service(pod: Pod, image: Image, name: str) -> list[str]:
    """Return the command that runs a service as the compose file says."""
    found = COMPOSE["services"][name]
    words = [*found.get("entrypoint", image.entrypoint), *found.get("command", image.command)]
    return pod.contained(image, *words, environment=found.get("environment"))


def output(process: Container) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def announced(feeder: Container) -> str:
    """Return what a feeder writes until it says where it listens."""
    said = ""
    while "streamrec serves " not in said:
        line = output(feeder).readline()
        assert line, said
        said += line
    return said


@contextmanager
def store(pod: Pod) -> Iterator[None]:
    """Run an object store where the compose file has one."""
    keys = ["--key", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"]]
    command = [sys.executable, "-m", "streamrec.devstore", "--port", "9000", *keys]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running(pod.command(*command), env=environment) as process:
        assert "9000" in output(process).readline()
        yield


def test_the_kernel_in_c_runs_and_no_compiler_is_there(image: Image, pod: Pod) -> None:
    program = (
        "import os, shutil\n"
        "from streamrec import kernel\n"
        "import streamrec.formats.images\n"
        "print(kernel.implementation, os.getuid(), os.getgid(), shutil.which('gcc'))"
    )
    code, output = ended(pod.contained(image, "python", "-c", program))
    assert (code, output) == (0, "native 10001 10001 None\n")


def test_nothing_can_be_written_but_below_tmp(image: Image, pod: Pod) -> None:
    code, output = ended(pod.contained(image, "touch", "/tmp/x", "/x"))
    assert code == 1
    assert output == "touch: cannot touch '/x': Read-only file system\n"


def test_a_feeder_beside_its_trainer(image: Image, pod: Pod) -> None:
    folder = ROOT / "deploy" / "kubernetes" / "sidecar"
    text = (folder / "feeder.toml").read_text()
    source = 'source = "s3://train/numbers-*.tfrecord"'
    store_options = '[datasets.train.storage_options]\nendpoint_url = "http://s3:9000"\n'
    text = re.sub(r"^source = .*$", source, text, flags=re.MULTILINE) + store_options
    image.inside("/etc/streamrec/sidecar.toml").write_text(text)
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    with store(pod):
        assert ended(service(pod, image, "fill"))[0] == 0
        serve = [*image.entrypoint, "serve", "/etc/streamrec/sidecar.toml"]
        with running(pod.contained(image, *serve, environment=KEYS)) as feeder:
            assert "train at unix:///run/streamrec/feeder.sock\n" in announced(feeder)
            assert ended(pod.contained(image, *trainer["command"])) == (0, "1024 records\n")
            os.kill(first_process(feeder), signal.SIGTERM)
            assert feeder.wait(LATE) == 0


def test_the_services_of_the_compose_file(image: Image, pod: Pod) -> None:
    with store(pod):
        code, said = ended(service(pod, image, "fill"))
        assert (code, said.count("wrote s3://train/numbers-")) == (0, 4), said
        with running(service(pod, image, "feeder")) as feeder:
            assert "train at tcp://0.0.0.0:7070\n" in announced(feeder)
            assert ended(pod.contained(image, *image.health)) == (0, "")
            with running(service(pod, image, "trainer")) as trainer:
                rate = output(trainer).readline()
                assert re.fullmatch(r"step [\d,]+: [\d,]+ batches/s, [\d,]+ records/s, .*\n", rate)
            os.kill(first_process(feeder), signal.SIGTERM)
            assert feeder.wait(LATE) == 0
