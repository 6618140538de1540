"""An authority for tests, and files of what it has signed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trustme

from streamrec.config.server_settings import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EXPIRED", "Authority", "write_secret"]

EXPIRED = datetime(2020, 1, 2, tzinfo=UTC)


class Authority:
    """Signs certificates, and writes them to a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.file = str(directory / f"{name}.pem")
        """Its own certificate."""
        self._authority.cert_pem.write_to_path(self.file)

    def pair(
        self, name: str, *names: str, until: datetime | None = None, same_file: bool = False
    ) -> dict[str, str]:
        """Write a certificate of these names and its key; return the paths ``cert`` and ``key``."""
        made = self._authority.issue_cert(
            *(names or ("127.0.0.1", "localhost")),
            not_after=until,
            not_before=datetime(2020, 1, 1, tzinfo=UTC),
        )
        cert, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        if same_file:
            write_secret(cert, made.private_key_and_cert_chain_pem.bytes())
            return {"cert": str(cert)}
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        write_secret(key, made.private_key_pem.bytes())
        return {"cert": str(cert), "key": str(key)}

    def server(self, *names: str, asks: bool = False, until: datetime | None = None) -> TlsSettings:
        """Write a feeder's certificate; return its settings, which may ask clients for one."""
        files = self.pair("feeder", *names, until=until)
        return TlsSettings(**files, client_ca=self.file if asks else None)


def write_secret(path: Path, content: bytes | str) -> str:
    """Write a file that its owner alone may read, under another name first; return its path."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(new.replace(path))
