"""Objects of the cluster's extensions, held against the models that their makers publish."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

MODELS = {
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "jobset.x-k8s.io/v1alpha2": "kubeflow_trainer_api.models.jobset_v1alpha2_job_set",
    "trainer.kubeflow.org/v1alpha1": "kubeflow_trainer_api.models.trainer_v1alpha1_train_job",
}
NAMES = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob"}
"""The models whose name is not the kind."""

VERSIONS = ("1.35", "1.36", "1.37")
"""Versions of Kubernetes: the three newest that kubernetes-validate knows."""


def lost(given: Any, kept: Any, where: str = "") -> list[str]:
    """Return the places of what is not kept as it was given; more may be there."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            place
            for key, value in given.items()
            for place in lost(value, kept.get(key, "nothing"), f"{where}.{key}")
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [place for i, (a, b) in pairs for place in lost(a, b, f"{where}[{i}]")]
    return [] if given == kept else [where]


def check(found: Any) -> None:
    """Hold an object against its schema: of the newest API, or of its maker."""
    if found["apiVersion"] in MODELS:
        name = MODELS[found["apiVersion"]]
        try:
            module = import_module(name)
        except ImportError:
            pytest.skip(f"{name.partition('.')[0]} is not installed")
        model = getattr(module, NAMES.get(found["kind"], found["kind"]))
        assert lost(found, _kept(model, found)) == []
        return
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    for version in VERSIONS:
        validate(found, version, strict=True)


def _kept(model: Any, found: Any) -> Any:
    """Return what a model keeps of an object: a field that it does not know is lost."""
    if hasattr(model, "from_dict"):  # that of Kubeflow
        return model.from_dict(found).to_dict()
    return model.model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True)
