"""Prometheus' configuration and alerts, by its own tool; and the names that they ask for."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from streamrec.flow.stages import TABLE
from tests.deploy.dockerfile import ROOT
from tests.deploy.metric_names import exported, wanted

FOLDER = ROOT / "deploy" / "prometheus"
GROUPS = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
RULES, LOADS = (group["rules"] for group in GROUPS)
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_configuration_and_the_rules_are_valid() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", str(ROOT / "tests" / "deploy" / "rules.test.yml"))


def test_each_alert_has_a_case() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "deploy" / "rules.test.yml").read_text())["tests"]
    for case in (case for case in cases if "alert_rule_test" in case):
        tested = [one["alertname"] for one in case["alert_rule_test"]]
        assert tested == [rule["alert"] for rule in RULES]


def test_each_series_of_the_load_has_a_case() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "deploy" / "rules.test.yml").read_text())["tests"]
    asked = {one["expr"] for case in cases for one in case.get("promql_expr_test", ())}
    assert {rule["record"] for rule in LOADS} <= asked


def test_each_stage_is_the_store_s_or_the_feeder_s_or_the_client_s() -> None:
    of_store, of_feeder = (rule["expr"] for rule in LOADS[:2])
    (named,) = re.findall(r'stage=~"([\w|]+)"', of_store)
    assert set(re.findall(r'stage!~"([\w|]+)"', of_feeder)) == {f"{named}|client"}
    assert {*named.split("|")} <= set(TABLE)


def test_each_metric_that_a_rule_asks_for_is_exported() -> None:
    assert wanted(FOLDER / "rules.yml") <= exported()
