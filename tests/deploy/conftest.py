"""The image, which two modules of tests use: making it takes minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.deploy import chroot
from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from tests.deploy.chroot import Image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the image, with what the compose file mounts into its containers."""
    work = tmp_path_factory.mktemp("image")
    chroot.make_base(work / "base")
    image = chroot.build(work / "base", work)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for service in services.values():
        for volume in service.get("volumes", ()) if service.get("image") == "streamrec" else ():
            source, target, mode = volume.split(":")
            assert mode == "ro"
            image.put(ROOT / source, target)
    return image
