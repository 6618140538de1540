"""Access to a feeder: its certificates and tokens as their files say now, and its side of TLS."""

from __future__ import annotations

import asyncio
import ssl
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.feeder.access.tls import load_authorities, load_pair
from streamrec.feeder.access.tokens import SecretFiles, Tokens, read_file, read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.config.server_settings import ServerSettings, TlsSettings


present_handshakes: ContextVar[list[Handshake]] = ContextVar("handshake")
"""Where a context leaves the present connection's end of TLS."""


class Handshake(ssl.SSLObject):
    """One end of TLS, which keeps the alert that OpenSSL writes when a handshake fails.

    It says why. Event loops close the connection without sending it, and the client would not know
    that its certificate was refused.
    """

    outgoing: ssl.MemoryBIO
    alert = b""

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            self.alert = self.outgoing.read()
            raise


class ServerContext(ssl.SSLContext):
    """A context whose connections leave their ends of TLS in ``present_handshakes``."""

    sslobject_class = Handshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any
    ) -> ssl.SSLObject:
        """Return the end of TLS of a connection, as event loops ask for it."""
        ssl_object = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(ssl_object, Handshake)
        ssl_object.outgoing = outgoing
        # Outside of a visit nobody listens, and the list is dropped.
        present_handshakes.get([]).append(ssl_object)
        return ssl_object


CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of Mozilla's "intermediate" configuration with forward secrecy and elliptic
curves. TLS 1.3 has no others."""


class Certificates:
    """The certificate of ``tls://`` addresses; new connections get the newest that can be used.

    Two are equal if their files hold the same.

    Args:
        settings: The names of the files.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        names = (settings.cert, settings.key, settings.client_ca)
        self._files = SecretFiles(
            [name for name in names if name is not None],
            lambda: _Loaded(_contents(settings), _context(settings)),
            f"the certificates of {settings.cert}",
        )

    def __repr__(self) -> str:
        return f"<Certificates of {self._settings.cert}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Certificates):
            return NotImplemented
        return self._files.value.contents == other._files.value.contents

    __hash__ = None  # type: ignore[assignment]

    @property
    def context(self) -> ServerContext:
        """The context for the next connection."""
        return self._files.value.context

    def look(self) -> None:
        """Take the files anew if one has changed."""
        self._files.look()


class _Loaded(NamedTuple):
    contents: list[bytes | None]
    context: ServerContext


def _contents(settings: TlsSettings) -> list[bytes | None]:
    key, authorities = settings.key, settings.client_ca
    # Without a file of its own, the key is in that of the certificate.
    read_cert = read_secret if key is None else _read
    return [
        read_cert(settings.cert, "server.tls.cert"),
        None if key is None else read_secret(key, "server.tls.key"),
        None if authorities is None else _read(authorities, "server.tls.client_ca"),
    ]


def _read(path: str, setting: str) -> bytes:
    return read_file(path, setting)[0]


def _context(settings: TlsSettings) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    load_pair(context, settings.cert, settings.key, "server.tls")
    if settings.client_ca is not None:
        load_authorities(context, settings.client_ca, "server.tls.client_ca")
        # Mutual TLS: a client without a certificate of these authorities gets no further.
        context.verify_mode = ssl.CERT_REQUIRED
    return context


LOOK_EVERY = 1.0
"""Seconds between two looks at the files, at least: a look is some system calls in a thread."""


class Access:
    """The certificates and tokens of a feeder.

    Args:
        server: The settings of the feeder.
        token_files: By name, the files of tokens of each dataset; a dataset may have no files.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(
        self, server: ServerSettings, token_files: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.server = server
        self.own = token_files or {}
        self.tokens = Tokens(server, self.own)
        self.certificates = None if server.tls is None else Certificates(server.tls)
        self._has_files = bool(server.tls or server.tokens or any(self.own.values()))
        self._looked_at = float("-inf")

    async def look(self) -> None:
        """Take files anew that have changed; where they cannot be used, the old ones stay."""
        now = asyncio.get_running_loop().time()
        if self._has_files and now >= self._looked_at + LOOK_EVERY:
            # Before the thread begins: others who come meanwhile do not look as well.
            self._looked_at = now
            await asyncio.to_thread(self.look_now)

    def look_now(self) -> None:
        """Do what :meth:`look` does, at once."""
        self.tokens.look()
        if self.certificates is not None:
            self.certificates.look()
