from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import RecordTooLarge
from streamrec.sources.memory import Memory
from streamrec.sources.source import files_of

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_the_message_names_the_memory_that_is_enough(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    (file,) = files_of(str(tmp_path / "x"))
    memory = Memory(64 * MIB)
    memory.check(16 * MIB, memory.record, "row 7", file)
    with pytest.raises(RecordTooLarge) as caught:
        memory.check(16 * MIB + 1, memory.record, "row 7", file)
    assert caught.value.url == str(tmp_path / "x")
    assert "row 7 takes 16 MiB, and --memory allows 16 MiB for it" in str(caught.value)
    assert "give --memory 65MiB or more" in str(caught.value)
    enough = Memory(65 * MIB)
    enough.check(16 * MIB + 1, enough.record, "row 7", file)
