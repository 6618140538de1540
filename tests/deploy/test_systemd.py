"""The unit of systemd, by systemd's own tool; and its configuration."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from typing import TYPE_CHECKING

import pytest

from streamrec.config.daemon import load_daemon
from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "streamrec.service"
PROGRAM = "/opt/streamrec/bin/streamrec"
EXPOSURE = 20
"""The most that systemd's own measure may be: tenths; 100 is a service without any protection."""
needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


def analyze(*arguments: str) -> str:
    command = ["systemd-analyze", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@needs_systemd
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))  # one that is there
    assert analyze("verify", "--man=no", str(unit)) == ""


@needs_systemd
def test_it_has_few_rights() -> None:
    analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(UNIT))


def test_it_fits_the_configuration() -> None:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    service = parser["Service"]
    assert service["ExecStart"] == f"{PROGRAM} serve /etc/streamrec/feeder.toml"
    server = load_daemon(FOLDER / "feeder.toml").server
    assert int(service["TimeoutStopSec"]) > server.grace + 5
    assert server.listen == [f"unix:///run/{service['RuntimeDirectory']}/feeder.sock"]
    assert service["Type"] == "notify"
