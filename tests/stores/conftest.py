from __future__ import annotations

import os

import pytest

from streamrec.stores.http.transport import AUTHORITIES
from tests.stores.certificates import Authority


@pytest.fixture(autouse=True)
def no_credentials_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's credentials, and the metadata service of a cloud."""
    for name in list(os.environ):
        ours = name.startswith(("AWS_", "GOOGLE_", "GCSFS_")) or name in AUTHORITIES
        if ours or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/dev/null")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Make an authority that no system trusts, and a server's certificate for 127.0.0.1."""
    return Authority(tmp_path_factory.mktemp("authority"))
