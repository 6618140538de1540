"""A feeder that a real Prometheus watches: each query of the dashboard has an answer."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import streamrec as sr
from tests.cli.support import started
from tests.deploy.dockerfile import ROOT
from tests.deploy.test_grafana import QUERIES, filled_in
from tests.feeder.shards import write_shards
from tests.feeder.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed"),
]
PATIENCE = 60.0
CONFIG = """
[server]
listen = ["tcp://127.0.0.1:0"]
status = "127.0.0.1:0"

[datasets.train]
source = "{source}"
batch_size = 8
epochs = inf
"""


@pytest.fixture
def feeder(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Run a feeder; yield where it listens."""
    path = tmp_path / "feeder.toml"
    path.write_text(CONFIG.format(source=write_shards(tmp_path, shards=2, records=2000)))
    with started("serve", path, "--json", stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.readline())
        yield found
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture
def client(feeder: dict[str, Any]) -> Iterator[None]:
    """Read from the feeder all the while, after it was asked for a dataset that it has not."""
    done = threading.Event()

    def read() -> None:
        address = f"{feeder['listen'][0]}/train"
        with sr.connect(address, rank=0, world_size=1) as stream:
            for _ in stream:
                if done.wait(0.01):
                    return

    with pytest.raises(sr.StreamrecError), sr.connect(f"{feeder['listen'][0]}/x") as stream:
        next(iter(stream))
    thread = threading.Thread(target=read)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.fixture
def prometheus(feeder: dict[str, Any], tmp_path: Path) -> Iterator[str]:
    """Run Prometheus with our configuration, but for where the feeder is; yield its URL."""
    settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(ROOT / "deploy/prometheus/rules.yml")]
    (job,) = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [feeder["status"]]}]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(settings))
    where = f"127.0.0.1:{free_port()}"
    options = [f"--web.listen-address={where}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        command = ["prometheus", f"--config.file={path}", *options]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        yield f"http://{where}"
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def answer(prometheus: str, path: str, **parameters: str) -> Any:
    """Return the data of an answer; nothing while Prometheus does not answer."""
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        if error.code != 503:  # it starts
            raise
        return {}
    except OSError:
        return {}


@pytest.mark.usefixtures("client")
def test_each_query_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    queries = {filled_in(query, interval="5s") for query in QUERIES}
    queries -= {query for query in queries if "streamrec_feeder_dropped_total" in query}

    def all_have_one() -> bool:
        nonlocal queries
        queries = {q for q in queries if not answer(prometheus, "query", query=q).get("result")}
        return not queries

    until(all_have_one, PATIENCE)
    alerts = answer(prometheus, "alerts")["alerts"]
    assert {alert["labels"]["alertname"] for alert in alerts} == {"StreamrecErrorsAreSent"}
