"""The dashboard, by Grafana's own model; its queries, by Prometheus' tool; and its metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.metric_names import exported, wanted
from tests.deploy.models import lost

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD = FOLDER / "dashboards" / "feeder.json"
BOARD = json.loads(DASHBOARD.read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]


def filled_in(query: str, interval: str = "1m") -> str:
    """Return a query with values for the dashboard's variables."""
    values = {"$__rate_interval": interval, "$instance": ".*", "$dataset": ".*"}
    return re.sub(r"\$\w+", lambda found: values[found[0]], query)


def test_grafana_s_model_knows_each_field_of_the_dashboard() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's model is not installed")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))
    assert lost(BOARD, kept) == []


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_metric_that_the_dashboard_asks_for_is_exported() -> None:
    assert len(QUERIES) > 20
    assert wanted(DASHBOARD) - {"streamrec"} <= exported()


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_each_query_is_one(tmp_path: Path) -> None:
    rules = [{"record": f"q{i}", "expr": filled_in(query)} for i, query in enumerate(QUERIES)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_s_grafana_finds_it() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    grafana = compose["services"]["grafana"]
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/feeders.yml").read_text())[
        "providers"
    ]
    where = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    assert where[provider["options"]["path"]] == "./deploy/grafana/dashboards"
    assert (
        grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        == f"{provider['options']['path']}/{DASHBOARD.name}"
    )


def test_the_source_is_the_one_that_the_dashboard_names() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())
    (source,) = sources["datasources"]
    (variable,) = [one for one in BOARD["templating"]["list"] if one["name"] == "datasource"]
    assert variable["current"] == {
        "selected": True, "text": source["name"], "value": source["uid"]
    }  # fmt: skip
