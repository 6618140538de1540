"""The objects for Kubernetes, by the schemas of its API; and how they fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

from streamrec.config.daemon import load_daemon
from tests.deploy.dockerfile import ROOT, stages
from tests.deploy.models import check

if TYPE_CHECKING:
    from pathlib import Path

BASE = ROOT / "deploy" / "kubernetes" / "base"
SIDECAR = BASE.with_name("sidecar")


def kustomization(folder: Path) -> Any:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def objects(folder: Path) -> list[Any]:
    """Return the objects that a kustomization takes."""
    names = kustomization(folder)["resources"]
    return [one for name in names for one in yaml.safe_load_all((folder / name).read_text())]


OBJECTS = [*objects(BASE), *objects(SIDECAR)]
BY_KIND = {one["kind"]: one for one in OBJECTS}
SERVICES = [one for one in OBJECTS if one["kind"] == "Service"]
PODS = [BY_KIND["Deployment"]["spec"]["template"], BY_KIND["Job"]["spec"]["template"]]
FEEDERS = [PODS[0]["spec"]["containers"][0], PODS[1]["spec"]["initContainers"][0]]
FORMS = [
    pytest.param(pod["spec"], feeder, folder, id=folder.name)
    for pod, feeder, folder in zip(PODS, FEEDERS, (BASE, SIDECAR), strict=True)
]


@pytest.mark.parametrize("found", OBJECTS, ids=lambda found: found["kind"])
def test_it_fits_the_schema_of_the_api(found: Any) -> None:
    check(found)


@pytest.mark.parametrize("folder", [BASE, SIDECAR], ids=lambda folder: folder.name)
def test_a_kustomization_takes_every_file(folder: Path) -> None:
    taken = kustomization(folder)
    (generated,) = taken["configMapGenerator"]
    there = {path.name for path in folder.iterdir() if path.is_file()}
    assert {*taken["resources"], *generated["files"], "kustomization.yaml"} == there


def images(pod: Any) -> set[str]:
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    return {container["image"] for container in containers}


@pytest.mark.parametrize(("pod", "feeder", "folder"), FORMS)
def test_the_image_and_the_configuration_are_those_of_the_kustomization(
    pod: Any, feeder: Any, folder: Path
) -> None:
    taken = kustomization(folder)
    assert images(pod) == {image["name"] for image in taken["images"]}
    (generated,) = taken["configMapGenerator"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] == generated["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in feeder["volumeMounts"]}
    command = next(one.words for one in stages()[-1] if one.word == "CMD")
    assert command == ["serve", f"{mounts['configuration']}/{generated['files'][0]}"]
    assert mounts["tmp"] == "/tmp"


@pytest.mark.parametrize(("pod", "feeder", "folder"), FORMS)
def test_ports_probes_and_patience_are_those_of_the_configuration(
    pod: Any, feeder: Any, folder: Path
) -> None:
    server = load_daemon(folder / "feeder.toml").server
    ports = {port["name"]: port["containerPort"] for port in feeder["ports"]}
    listening = [urlsplit(where).port for where in server.listen]
    assert [ports.get("feeder")] == listening
    assert ports["status"] == urlsplit(f"//{server.status}").port
    probes = {name: feeder[name]["httpGet"] for name in feeder if name.endswith("Probe")}
    assert probes.pop("livenessProbe") == {"path": "/livez", "port": "status"}
    assert [*probes.values()] == [{"path": "/readyz", "port": "status"}]
    assert pod["terminationGracePeriodSeconds"] > server.grace + 5


@pytest.mark.parametrize(("pod", "feeder", "folder"), FORMS)
def test_nothing_runs_with_more_rights_than_it_needs(pod: Any, feeder: Any, folder: Path) -> None:
    (user,) = [one.text for one in stages()[-1] if one.word == "USER"]
    pod_context = pod["securityContext"]
    assert f"{pod_context['runAsUser']}:{pod_context['runAsGroup']}" == user
    assert pod_context["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_selectors_find_the_feeders() -> None:
    labels = BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in SERVICES),
        BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert BY_KIND["Deployment"]["spec"]["replicas"] > 1
    account = BY_KIND["ServiceAccount"]["metadata"]["name"]
    assert BY_KIND["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_services_name_the_feeders_ports() -> None:
    headless, near = (service["spec"] for service in SERVICES)
    assert headless["clusterIP"] == "None"
    assert "clusterIP" not in near
    ports = {port["name"]: port["containerPort"] for port in FEEDERS[0]["ports"]}
    assert {port["targetPort"]: port["port"] for port in headless["ports"]} == ports
    assert {port["targetPort"]: port["port"] for port in near["ports"]} == {"feeder": 7070}
    ingress = BY_KIND["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"] for rule in ingress for port in rule["ports"]} == ports.keys()


def test_feeder_and_trainer_of_a_pod_share_the_socket_s_directory() -> None:
    pod = PODS[1]["spec"]
    (listen,) = load_daemon(SIDECAR / "feeder.toml").server.listen
    (trainer,) = pod["containers"]
    mounts = [
        {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for container in (FEEDERS[1], trainer)
    ]
    assert mounts[0]["socket"] == mounts[1]["socket"]
    assert listen.startswith(f"unix://{mounts[0]['socket']}/")
    assert f"{listen}#train" in trainer["command"][-1]
    compile(trainer["command"][-1], "trainer", "exec")
