from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_credentials_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests give their own: neither this machine's files nor a cloud's metadata service."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "GCSFS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/dev/null")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
