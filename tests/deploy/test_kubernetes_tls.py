"""The base of Kubernetes with TLS and tokens, as its patch leaves it."""

from __future__ import annotations

import copy
from pathlib import PurePosixPath
from typing import Any

import yaml

from streamrec.config.daemon import load_daemon
from tests.deploy.models import check
from tests.deploy.test_kubernetes import BASE, BY_KIND, kustomization

FOLDER = BASE.with_name("tls")
PATCH = yaml.safe_load((FOLDER / "secrets.yaml").read_text())


def patched(given: Any, patch: Any) -> Any:
    """Merge a patch as the API does: mappings by keys, lists by their items' names."""
    if isinstance(given, dict) and isinstance(patch, dict):
        merged = {key: patched(value, patch.get(key)) for key, value in given.items()}
        return merged | {key: patch[key] for key in patch.keys() - given.keys()}
    if isinstance(given, list) and isinstance(patch, list):
        by_name = {item["name"]: item for item in patch}
        kept = [patched(item, by_name.pop(item["name"], None)) for item in given]
        return [*kept, *by_name.values()]
    return given if patch is None else patch


DEPLOYMENT = patched(copy.deepcopy(BY_KIND["Deployment"]), PATCH)
POD = DEPLOYMENT["spec"]["template"]["spec"]


def test_it_fits_the_schema_of_the_api() -> None:
    check(DEPLOYMENT)


def test_the_patch_is_for_what_the_base_has() -> None:
    taken = kustomization(FOLDER)
    assert taken["resources"] == ["../base"]
    assert [patch["path"] for patch in taken["patches"]] == ["secrets.yaml"]
    (generated,), (replaced,) = (
        kustomization(folder)["configMapGenerator"] for folder in (FOLDER, BASE)
    )
    assert generated == replaced | {"behavior": "replace"}
    assert PATCH["metadata"]["name"] == BY_KIND["Deployment"]["metadata"]["name"]
    assert [container["name"] for container in POD["containers"]] == ["feeder"]


def test_the_configuration_names_files_of_the_secrets() -> None:
    settings = load_daemon(FOLDER / "feeder.toml")
    server = settings.server
    (feeder,) = POD["containers"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    secrets = {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in feeder["volumeMounts"]
        if "secret" in volumes[mount["name"]]
    }
    assert server.tls is not None
    named = [server.tls.cert, server.tls.key, *settings.datasets["train"].tokens]
    assert {secrets[str(PurePosixPath(str(path)).parent)] for path in named} == {
        "streamrec-tls", "streamrec-tokens"
    }  # fmt: skip
    assert not server.insecure
    assert server.listen == [
        where.replace("tcp:", "tls:") for where in load_daemon(BASE / "feeder.toml").server.listen
    ]


def test_nobody_else_reads_the_secrets() -> None:
    modes = [volume["secret"]["defaultMode"] for volume in POD["volumes"] if "secret" in volume]
    assert modes == [0o440, 0o440]
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]
