"""The token that a client shows: given as text, or kept in a file."""

from __future__ import annotations

from streamrec.errors import ConfigError
from streamrec.feeder.access.secret_files import read_file
from streamrec.feeder.access.tokens import MOST

__all__ = ["read_token"]


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
