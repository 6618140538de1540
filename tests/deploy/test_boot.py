"""The unit of systemd in a Debian that systemd boots: the image, with systemd in it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.deploy import chroot
from tests.deploy.dockerfile import ROOT
from tests.deploy.machine import PATIENCE, Machine, cgroups
from tests.feeder.shards import write_shards
from tests.feeder.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.deploy.chroot import Image

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(chroot.missing() is not None, reason=f"no chroot: {chroot.missing()}"),
    pytest.mark.skipif(cgroups() is None, reason="no control groups of version 2 to write to"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("image"),
]
FOLDER = ROOT / "deploy" / "systemd"
RECORDS = 100
SETUP = """
set -e
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends procps systemd
ln -s /usr/local /opt/streamrec
groupadd --system --force streamrec
useradd --groups streamrec member
useradd other
"""
READ = """
import streamrec as sr
with sr.connect("unix:///run/streamrec/feeder.sock#train", rank=0, world_size=1) as stream:
    print(sum(map(len, stream)), "records")
"""


@pytest.fixture
def root(image: Image, tmp_path: Path) -> Path:
    """Return a root file system with the unit, its configuration, and shards."""
    root = tmp_path / "root"
    subprocess.run(["cp", "--archive", str(image.root), str(root)], check=True)
    setup = ["chroot", str(root), "env", "-i", f"PATH={chroot.PATH}", "sh", "-c", SETUP]
    done = subprocess.run(setup, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    write_shards(root / "srv", shards=2, records=RECORDS // 2)
    text = (FOLDER / "feeder.toml").read_text()
    text = re.sub(r"^source = .*$", 'source = "/srv/*.tfrecord"', text, flags=re.MULTILINE)
    (root / "etc/streamrec").mkdir(exist_ok=True)
    (root / "etc/streamrec/feeder.toml").write_text(text.replace("epochs = inf\n", ""))
    (root / "etc/systemd/system/streamrec.service").write_text(
        (FOLDER / "streamrec.service").read_text()
    )
    return root


@pytest.fixture
def machine(root: Path) -> Iterator[Machine]:
    place = cgroups()
    assert place is not None
    machine = Machine(root, place)
    try:
        machine.wait()
        yield machine
    finally:
        machine.close()


def test_a_feeder_s_life_under_systemd(machine: Machine, root: Path) -> None:
    started = machine.run("systemctl", "start", "streamrec")  # it returns at READY=1
    assert started.returncode == 0, machine.log("streamrec")
    member = machine.run("python", "-c", READ, user="member")
    assert member.stdout == f"{RECORDS} records\n", member.stderr
    assert "Permission denied" in machine.run("python", "-c", READ, user="other").stderr

    assert machine.run("systemctl", "reload", "streamrec").returncode == 0
    assert "reload: nothing has changed" in machine.log("streamrec")

    machine.run("systemctl", "kill", "--signal=KILL", "streamrec")
    until(lambda: machine.property("streamrec", "NRestarts") == "1", PATIENCE)
    until(lambda: machine.property("streamrec", "ActiveState") == "active", PATIENCE)

    assert machine.run("systemctl", "stop", "streamrec").returncode == 0
    assert machine.property("streamrec", "Result") == "success"
    assert "has ended" in machine.log("streamrec")

    path = root / "etc/streamrec/feeder.toml"
    path.write_text(path.read_text() + "nonsense = 1\n")
    assert machine.run("systemctl", "start", "streamrec").returncode != 0
    assert machine.property("streamrec", "ActiveState") == "failed"  # and is not started again
    assert "nonsense" in machine.log("streamrec")
