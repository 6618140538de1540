"""The chart as Helm renders it, beside the kustomizations as kustomize renders them."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml

from bench.autoscale import Rule
from tests.deploy.dockerfile import ROOT
from tests.deploy.models import check

CHART = ROOT / "deploy" / "helm" / "streamrec"
BASE = ROOT / "deploy" / "kubernetes" / "base"
OF_HELM = {
    *("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"),
    *("checksum/configuration", "helm.sh/chart"),
}
"""Labels and annotations that only a chart gives."""
EXTENSIONS = (
    *("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true"),
    *("tls.certManager.enabled=true", "tls.certManager.issuer.name=ca"),
)

pytestmark = pytest.mark.skipif(
    not (shutil.which("helm") and shutil.which("kubectl")), reason="helm and kubectl: .ci/helm.sh"
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def rendered(*command: str) -> list[Any]:
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def chart(*values: str, name: str = "streamrec") -> list[Any]:
    """Return the objects of the chart with these values, as ``--set`` or other options."""
    options = [
        word for value in values for word in (value if " " in value else f"--set {value}").split()
    ]
    return rendered("helm", "template", name, str(CHART), *options)


def plain(given: Any) -> Any:
    """Return an object without what only Helm adds, and kustomize's hashes."""
    if isinstance(given, dict):
        return {key: plain(value) for key, value in given.items() if key not in OF_HELM}
    if isinstance(given, list):
        return [plain(one) for one in given]
    return given


def by_name(objects: list[Any]) -> dict[tuple[str, str], Any]:
    found = {}
    for one in map(plain, objects):
        name = one["metadata"]["name"]
        if one["kind"] == "ConfigMap":
            name, one["data"] = name.split("-")[0], {k: v.strip() for k, v in one["data"].items()}
            one["metadata"] = {"name": name}
        if one["kind"] == "Deployment":
            one["metadata"].pop("annotations", None)
            pod = one["spec"]["template"]["spec"]
            pod["volumes"].sort(key=lambda volume: volume["name"])
            (feeder,) = pod["containers"]
            feeder["volumeMounts"].sort(key=lambda mount: mount["name"])
            # kustomize's file says nothing, and the API's default for a tag is this.
            assert feeder.pop("imagePullPolicy", "IfNotPresent") == "IfNotPresent"
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = volume["configMap"]["name"].split("-")[0]
        found[one["kind"], name] = one
    return found


@pytest.mark.parametrize(
    ("folder", "values"),
    [
        ("base", []),
        (
            "tls",
            [
                f"--set-file configuration={BASE.with_name('tls') / 'feeder.toml'}",
                "tls.secret=streamrec-tls",
                "tokens.secret=streamrec-tokens",
            ],
        ),
    ],
    ids=["base", "tls"],
)
def test_the_chart_and_the_kustomization_render_the_same_objects(
    folder: str, values: list[str]
) -> None:
    customized = rendered("kubectl", "kustomize", str(BASE.with_name(folder)))
    assert by_name(chart(*values)) == by_name(customized)


def test_every_object_fits_its_schema() -> None:
    objects = chart(
        f"--set-file configuration={BASE.with_name('tls') / 'feeder.toml'}", *EXTENSIONS
    )
    kinds = {one["kind"] for one in objects}
    assert {"Certificate", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"} <= kinds
    for one in objects:
        check(one)


def test_lint_finds_no_fault() -> None:
    done = run("helm", "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_are_those_of_prometheus_and_grafana() -> None:
    objects = {one["kind"]: one for one in chart(*EXTENSIONS[:3])}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    assert objects["PrometheusRule"]["spec"] == rules
    boards = [
        one["data"]["streamrec.json"]
        for one in chart(*EXTENSIONS[:3])
        if "streamrec.json" in one.get("data", ())
    ]
    board = (ROOT / "deploy" / "grafana" / "dashboards" / "feeder.json").read_text()
    assert [yaml.safe_load(one) for one in boards] == [yaml.safe_load(board)]


def test_two_releases_share_no_name_and_no_pod() -> None:
    one, two = chart(name="images"), chart(name="texts")
    names = [{(o["kind"], o["metadata"]["name"]) for o in objects} for objects in (one, two)]
    assert not names[0] & names[1]
    selectors = [
        next(o for o in objects if o["kind"] == "Deployment")["spec"]["selector"]["matchLabels"]
        for objects in (one, two)
    ]
    assert selectors[0] != selectors[1]


def test_cert_manager_s_names_are_those_of_the_services() -> None:
    tls = f"--set-file configuration={BASE.with_name('tls') / 'feeder.toml'}"
    objects = chart(tls, *EXTENSIONS, "--namespace data")
    (names,) = [one["spec"]["dnsNames"] for one in objects if one["kind"] == "Certificate"]
    services = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
    assert {*names} == {name + more for name in services for more in ("", ".data.svc")}


@pytest.mark.parametrize("engine", ["keda", "hpa"])
def test_a_fleet_that_sizes_itself(engine: str) -> None:
    values = ("enabled=true", f"engine={engine}", "cores=8", "target=93", "sessions=64")
    sizes = ("link=3125000000", "coolDown=300", "min=3", "max=40")
    objects = chart(*(f"autoscaling.{value}" for value in (*values, *sizes)), "--namespace data")
    by_kind = {one["kind"]: one for one in objects}
    assert "replicas" not in by_kind["Deployment"]["spec"]  # else each upgrade would set them back
    scaler = by_kind["ScaledObject" if engine == "keda" else "HorizontalPodAutoscaler"]
    check(scaler)
    spec, least = scaler["spec"], Rule()
    rule = {"bytes": "2906250000", "cores": "7.44", "sessions": "64"}
    if engine == "keda":
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        found = {one["metadata"]["query"]: one["metadata"]["threshold"] for one in spec["triggers"]}
        names = {
            f'max(streamrec:load:{load}{{namespace="data", service="streamrec"}})': each
            for load, each in rule.items()
        }
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 40)
    else:
        behavior = spec["behavior"]
        external = [one["external"] for one in spec["metrics"]]
        found = {one["metric"]["name"]: one["target"]["averageValue"] for one in external}
        names = {f"streamrec_load_{load}": each for load, each in rule.items()}
        assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 40)
    assert found == names
    # What was simulated is what is deployed.
    down = behavior["scaleDown"]
    assert down["stabilizationWindowSeconds"] == least.cool_down
    assert down["policies"][0] == {
        "type": "Percent", "value": 100 * least.slowest, "periodSeconds": 60
    }  # fmt: skip
    assert yaml.safe_load((CHART / "values.yaml").read_text())["autoscaling"]["target"] == (
        100 * least.target
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("replicas=two", "replicas"),
        ("image.name=x", "name"),
        ("replica=3", "replica"),
        ("networkPolicy.clients=null", "clients"),  # it would let everybody in
        ("autoscaling.enabled=true,autoscaling.max=1", "min is more than max"),
        ("tls.secret=mine", "the configuration names no certificate"),
        ("tokens.secret=mine", "the configuration names no file of the secret"),
    ],
)
def test_wrong_values_are_refused(value: str, said: str) -> None:
    done = run("helm", "template", "streamrec", str(CHART), "--set", value)
    assert done.returncode != 0
    assert said in done.stderr
