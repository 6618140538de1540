from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

import streamrec
from streamrec import kernel
from streamrec.measure import machine
from streamrec.measure.machine import describe_machine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels


def test_this_machine() -> None:
    found = describe_machine()
    assert found.cpu
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_bytes > 1 << 20
    assert platform.python_version() in found.python
    assert found.streamrec == streamrec.__version__
    assert found.kernel == kernel.implementation


@pytest.mark.parametrize("text", [None, "", "processor\t: 0\nBogoMIPS\t: 50.00\n"])
def test_a_processor_without_a_name_has_an_architecture(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(machine, "CPUINFO", path)
    assert describe_machine().cpu == platform.machine()
