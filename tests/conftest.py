"""Settings for all tests."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# A loaded machine is no defect: no test depends on how fast it runs.
settings.register_profile("streamrec", deadline=None)

# Automatic runs take the same examples each time: no change is to fail by what another one did.
# New examples are looked for by those who can look into what is found.
settings.register_profile("again", deadline=None, derandomize=True)
settings.load_profile("again" if os.environ.get("CI") else "streamrec")

# Without this, S3 clients that find no credentials ask the network's metadata address for some.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# The same for Google's.
os.environ["NO_GCE_CHECK"] = "true"


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Name bytes by their length: serialized maps have no order, but tests must have one name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
