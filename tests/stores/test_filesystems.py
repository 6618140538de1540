from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.stores.filesystems import filesystem_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_url_s_filesystem_and_path() -> None:
    files, path = filesystem_of("memory://bucket/a b", {})
    assert (files.protocol, path) == ("memory", "/bucket/a b")


def test_a_path_s(tmp_path: Path) -> None:
    files, path = filesystem_of(str(tmp_path), {})
    assert path == str(tmp_path)
    assert files.isdir(path)


def test_an_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match=r"foo://x: .*correct the URL"):
        filesystem_of("foo://x", {})
