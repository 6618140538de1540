"""Certificates made on the fly."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

__all__ = ["Authority"]


class Authority:
    """Signs servers' certificates.

    Args:
        directory: Where its own certificate is written.
    """

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.file = str(directory / "authority.pem")
        """The PEM file that clients should trust."""
        self._authority.cert_pem.write_to_path(self.file)
        self.server = self.context("127.0.0.1")

    def context(self, *names: str, until: datetime | None = None) -> ssl.SSLContext:
        """Return a server's TLS context with a certificate of these names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(*names, not_after=until).configure_cert(context)
        return context

    def pem(self, *names: str) -> bytes:
        """Return key and certificate of these names, in one PEM file."""
        return self._authority.issue_cert(*names).private_key_and_cert_chain_pem.bytes()
