from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.feeder.access.token_file import read_token, read_token_async
from streamrec.feeder.access.tokens import MOST

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("token", [None, "", "secret", "/path", "profile:x"])
def test_a_token_is_itself(token: str | None) -> None:
    assert read_token(token) == token
    assert asyncio.run(read_token_async(token)) == token


@pytest.mark.parametrize("content", ["secret", "secret\n", "  secret \r\n"])
def test_a_file_holds_a_token(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    assert read_token(f"file:{tmp_path}/token") == "secret"
    assert asyncio.run(read_token_async(f"file:{tmp_path}/token")) == "secret"
    assert read_token(f"file://{tmp_path}/token") == "secret"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty, too large, or no text; name a file that holds the token alone"),
        (b" \n", "is empty"),
        (b"x" * (MOST + 1), "too large"),
        (b"\xff\xfe", "no text"),
        (b"first\nsecond\n", "has several lines.*a client shows one token"),
        (None, r"token: .* cannot be read \(No such file"),
    ],
)
def test_a_file_without_a_token(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_token(f"file:{tmp_path}/token")
    with pytest.raises(ConfigError, match=words):
        asyncio.run(read_token_async(f"file:{tmp_path}/token"))
