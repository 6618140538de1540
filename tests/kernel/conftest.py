from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from streamrec.kernel import reference

IMPLEMENTATIONS: list[Any] = [reference]
"""Every implementation of the kernel that is here: each passes the same tests."""

if find_spec("streamrec.kernel._native"):
    from streamrec.kernel import native

    IMPLEMENTATIONS.append(native)


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])
def kernel(request: pytest.FixtureRequest) -> Any:
    return request.param
