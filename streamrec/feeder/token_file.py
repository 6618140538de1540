"""The token that a client shows: given as text, or kept in a file."""

from __future__ import annotations

from pathlib import Path

from streamrec.errors import ConfigError

__all__ = ["read_token"]

MOST = 32 << 10
"""Bytes of a file: HELLO, which carries the token, has 64 KiB at most."""


def read_token(token: str | None) -> str | None:
    """Return a token as it is, or what its file holds now.

    Args:
        token: The token, or ``file:/path``.

    Raises:
        ConfigError: The file cannot be read, or holds no token.
    """
    if token is None or not token.startswith("file:"):
        return token
    path = token.removeprefix("file:")
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST + 1).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            f"the token cannot be read from {path}: {reason}; name a file that holds it alone"
        ) from None
    if not text.strip() or len(text) > MOST:
        raise ConfigError(
            f"{path} is {'empty' if not text.strip() else 'too large for a token'}; name a file "
            "that holds the token alone"
        )
    return text.strip()
