"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine is no defect: no test depends on how fast it runs.
settings.register_profile("streamrec", deadline=None)
settings.load_profile("streamrec")

# Without this, S3 clients that find no credentials ask the network's metadata address for some.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
