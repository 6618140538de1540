"""Access to a feeder: its certificates and its tokens, as their files say now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamrec.feeder.access.certificates import Certificates
from streamrec.feeder.access.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.config.daemon import DaemonSettings

LOOK_EVERY = 1.0
"""Seconds between two looks at the files, at least: a look is some system calls in a thread."""


class Access:
    """The certificates and tokens of a feeder.

    Args:
        server: The settings of the feeder.
        own: By name, the files of tokens of each dataset; a dataset may have no files.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(
        self, server: DaemonSettings.Server, own: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.server = server
        self.own = own or {}
        self.tokens = Tokens(server, self.own)
        self.certificates = None if server.tls is None else Certificates(server.tls)
        self._has_files = bool(server.tls or server.tokens or any(self.own.values()))
        self._looked_at = float("-inf")

    async def look(self) -> None:
        """Take files anew that have changed; where they cannot be used, the old ones stay."""
        now = asyncio.get_running_loop().time()
        if self._has_files and now >= self._looked_at + LOOK_EVERY:
            self._looked_at = now
            await asyncio.to_thread(self.look_now)

    def look_now(self) -> None:
        """Do what :meth:`look` does, at once."""
        self.tokens.look()
        if self.certificates is not None:
            self.certificates.look()
