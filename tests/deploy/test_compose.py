"""The compose file, by the schema of compose files; and the files and services that it names."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from urllib.parse import urlsplit

import pytest
import yaml

from streamrec.config.daemon import load_daemon
from tests.deploy.dockerfile import ROOT

PATH = ROOT / "docker-compose.yml"
SERVICES = yaml.safe_load(PATH.read_text())["services"]
FEEDER = load_daemon(ROOT / "deploy" / "feeder.toml")


@pytest.mark.skipif(not find_spec("check_jsonschema"), reason="check-jsonschema is not installed")
def test_it_fits_the_schema_of_compose_files() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(PATH)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_mounts_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, _, mode = volume.split(":")
            assert (ROOT / source).exists(), volume
            assert mode == "ro"


def test_every_port_is_published_on_loopback_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) > 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_services_speak_of_each_other() -> None:
    port = urlsplit(FEEDER.server.listen[0]).port
    assert SERVICES["trainer"]["command"] == [f"tcp://feeder:{port}/train"]
    options = FEEDER.datasets["train"].storage_options or {}
    assert options["endpoint_url"] == SERVICES["fill"]["command"][1]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    status = f"feeder:{str(FEEDER.server.status).rpartition(':')[2]}"
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": [status]}]


def test_the_feeder_has_time_to_drain() -> None:
    assert int(SERVICES["feeder"]["stop_grace_period"].removesuffix("s")) > FEEDER.server.grace
