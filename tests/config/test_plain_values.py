from __future__ import annotations

from typing import Any

import pytest

from streamrec.config.plain_values import byte_size
from streamrec.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "size"),
    [(1, 1), ("4MiB", 4 << 20), ("1.5 GiB", 3 << 29), ("1kB", 1000), (1e6, 10**6), ("7", 7)],
)
def test_a_number_of_bytes(written: Any, size: int) -> None:
    assert byte_size("--shard-size", written) == size


@pytest.mark.parametrize("written", ["1GB RAM", 0, "0MiB", -1, "many", None, []])
def test_no_number_of_bytes(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"--shard-size is .* but must be a number of bytes"):
        byte_size("--shard-size", written)
