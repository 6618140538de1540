"""The token that a client shows: given as text, or kept in a file."""

from __future__ import annotations

from streamrec.errors import ConfigError
from streamrec.feeder.access.secret_files import read_file, read_file_async
from streamrec.feeder.access.tokens import MOST


def read_token(token: str | None) -> str | None:
    """Return a token as it is, or what its file holds now.

    Args:
        token: The token, or ``file:/path``.

    Raises:
        ConfigError: The file cannot be read, or holds no token, or several.
    """
    if token is None or not token.startswith("file:"):
        return token
    path = token.removeprefix("file:")
    data, _ = read_file(path, "token")
    return _token_in(data, path)


async def read_token_async(token: str | None) -> str | None:
    """Do what :func:`read_token` does, without a wait of the event loop for a disk."""
    if token is None or not token.startswith("file:"):
        return token
    path = token.removeprefix("file:")
    return _token_in(await read_file_async(path, "token"), path)


def _token_in(data: bytes, path: str) -> str:
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        # The error itself would quote the file.
        text = ""
    if not 0 < len(text) <= MOST:
        raise ConfigError(
            f"token: {path} is empty, too large, or no text; name a file that holds the token alone"
        )
    if len(text.splitlines()) > 1:
        raise ConfigError(
            f"token: {path} has several lines, as a feeder's file may; a client shows one token: "
            "name a file that holds the token alone"
        )
    return text
