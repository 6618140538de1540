from __future__ import annotations

from typing import Any

import pytest

from streamrec.kernel import reference

IMPLEMENTATIONS = [reference]
"""Every implementation of the kernel: each passes the same tests."""


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])
def kernel(request: pytest.FixtureRequest) -> Any:
    return request.param
