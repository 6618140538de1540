"""Settings for all tests."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# A loaded machine is no defect: no test depends on how fast it runs.
settings.register_profile("streamrec", deadline=None)
settings.load_profile("streamrec")

# Without this, S3 clients that find no credentials ask the network's metadata address for some.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# The same for Google's.
os.environ["NO_GCE_CHECK"] = "true"


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Name bytes by their length: serialized maps have no order, but tests must have one name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
