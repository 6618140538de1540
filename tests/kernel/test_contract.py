"""The numbers that both kernels have are those of the C sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamrec.kernel.contract import FaultCode, fresh, mask, unmask

C = Path(__file__).parents[2] / "streamrec/kernel/c"


def enumerated(header: str, name: str) -> dict[str, int]:
    """Return the names and numbers of an enumeration of C."""
    found = re.search(rf"enum {name} \{{(.*?)\}}", (C / header).read_text(), re.DOTALL)
    assert found
    return {each: int(number) for each, number in re.findall(r"SR_(\w+) = (\d+)", found[1])}


def test_faults() -> None:
    numbers = enumerated("fault.h", "sr_fault")
    assert numbers.pop("NO_MEMORY") not in {*FaultCode}
    assert numbers == {fault.name: fault.value for fault in FaultCode}


def test_forms_and_types_of_columns() -> None:
    columns = pytest.importorskip(
        "streamrec.kernel.native.examples",
        reason="the extension is not built",
        exc_type=ImportError,
    )
    kinds = {kind.name: number for kind, number in columns._KINDS.items()}
    assert kinds == enumerated("examples.h", "sr_kind")
    types = {each.value: number for each, number in columns._TYPES.items()}
    numbers = enumerated("list.h", "sr_type")
    assert types == {
        "bytes": numbers["STRINGS"], "float32": numbers["FLOATS"], "int64": numbers["INTS"],
    }  # fmt: skip


def test_masked_crcs() -> None:
    """TensorFlow's crc32c_test.cc: a mask changes a CRC, and is taken off again."""
    for crc in (0, 1, 0xE3069283, 0xFFFFFFFF):
        assert mask(crc) == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32
        assert unmask(mask(crc)) == crc
        assert mask(crc) != crc != mask(mask(crc))


def test_fresh_memory_is_aligned() -> None:
    for size in (0, 1, 100):
        memory = fresh(size)
        assert memory.shape == (size,)
        assert memory.dtype == "uint8"
        assert not size or memory.ctypes.data % 64 == 0
