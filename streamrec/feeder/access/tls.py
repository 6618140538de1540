"""TLS of a client: its context, and its errors in words; and the loading of PEM files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, TypeAlias

from streamrec.config.named_files import check_file, check_variables
from streamrec.errors import ConfigError, FeederLost, FeederRefused

if TYPE_CHECKING:
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
