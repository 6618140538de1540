"""Access to a feeder: its certificates and tokens as their files say now; and TLS of both sides.

Of a client: its context, and its errors in words; and the loading of PEM files.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamrec.config.named_files import check_file, check_variables
from streamrec.errors import ConfigError, FeederLost, FeederRefused
from streamrec.feeder.access.tokens import SecretFiles, Tokens, read_file, read_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config.server_settings import ServerSettings, TlsSettings
    from streamrec.feeder.access.address import Address

ClientTls: TypeAlias = bool | str | PathLike[str] | Mapping[str, str | PathLike[str]] | None
"""``tls=`` of ``streamrec.connect``."""

_PARTS = ("ca", "cert", "key")
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
"""What OpenSSL says where the other end speaks something else."""


def tls_files(tls: ClientTls, place: Address) -> dict[str, str] | None:
    """Return the files that ``tls=`` names, for :func:`client_context`.

    Args:
        tls: ``True`` or ``None``: trust the system's authorities; a path: those in that file; or a
            mapping with the paths ``ca``, and ``cert`` and ``key`` for a feeder that asks for a
            certificate (without ``key`` it is in ``cert``).
        place: The feeder; ``None`` is returned where no TLS is spoken.

    Raises:
        ConfigError: It is something else, or contradicts the address.
    """
    if not place.tls:
        if tls is None or tls is False:
            return None
        raise ConfigError(
            f"tls is set, but {place} is without TLS; write tls:// in the address, or leave tls out"
        )
    if tls is True or tls is None:
        return {}
    if isinstance(tls, str | PathLike):
        return {"ca": fspath(tls)}
    if not isinstance(tls, Mapping) or not set(tls) <= set(_PARTS) or set(tls) == {"key"}:
        raise ConfigError(
            f"to connect to {place}, tls must be True, the path of a file of authorities, or a "
            "mapping with the paths 'ca', 'cert' and 'key'; a key needs its certificate"
        )
    return {name: fspath(path) for name, path in tls.items()}


def client_context(files: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of a client, which checks the feeder's certificate and its name.

    Args:
        files: Paths of PEM files: ``ca``, without it the system's authorities are trusted; and
            ``cert`` and ``key``, which the client shows.

    Raises:
        ConfigError: A file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Older versions are deprecated by RFC 8996.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if "ca" in files:
        load_authorities(context, files["ca"], "tls")
    else:
        check_variables()
        context.load_default_certs()
    if "cert" in files:
        load_pair(context, files["cert"], files.get("key"), "tls")
    return context


def load_pair(context: ssl.SSLContext, cert: str, key: str | None, setting: str) -> None:
    """Load a certificate and its private key; ``setting`` names them in errors.

    Raises:
        ConfigError: They cannot be used.
    """
    # OpenSSL opens the files itself, and would wait for ever at a FIFO.
    for path in filter(None, (cert, key)):
        check_file(path, setting)
    try:
        # With a password, OpenSSL asks nobody at the terminal for one.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{setting}: {cert} and {key or 'the key in it'} are not a certificate and its private "
            f"key ({_reason(error)}); give PEM files that belong together, the key without a "
            "password"
        ) from None


def load_authorities(context: ssl.SSLContext, path: str, setting: str) -> None:
    """Trust the authorities in a file; ``setting`` names it in errors.

    Raises:
        ConfigError: It cannot be used.
    """
    check_file(path, setting)
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{setting}: {path} holds no certificate of an authority ({_reason(error)}); give a "
            "PEM file"
        ) from None


def failure(error: ssl.SSLError, where: str) -> FeederLost | FeederRefused:
    """Return the error of a client whose connection over TLS has failed.

    Args:
        error: The reason.
        where: The address of the feeder.
    """
    # This side has refused: all other failures are the feeder's, or of the way.
    if isinstance(error, ssl.SSLCertVerificationError):
        return FeederRefused(
            f"the certificate of {where} is not to be trusted: {error.verify_message}; check the "
            "feeder's certificate and the name in the address, or give its authority as tls=",
            code="certificate",
        )
    reason = _reason(error)
    # Python has no class for this: OpenSSL's name of the reason is all there is.
    if any(name in reason for name in _NO_TLS):
        return FeederRefused(
            f"{where} does not speak TLS; connect to the feeder's tls:// address, or, on the same "
            "machine, write tcp://",
            code="tls",
        )
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return FeederRefused(
            f"{where} refuses this client's certificate ({_plain(reason)}); give tls={{'ca': ..., "
            "'cert': ..., 'key': ...} with one that its client_ca has signed and that is valid now",
            code="certificate",
        )
    return FeederLost(
        f"the connection over TLS to {where} broke ({_plain(reason)}); check that a feeder runs "
        "there and can be reached"
    )


def _plain(reason: str) -> str:
    """Return OpenSSL's name of a failure as words: without the versions of its alerts."""
    words = reason.lower().replace("_", " ").partition("alert ")
    return words[2] or words[0]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it cannot be read, or needs a password"
    return getattr(error, "strerror", None) or "this is not a path"


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
