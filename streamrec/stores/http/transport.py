"""Certificates and proxy with which a server is reached.

Options come before the environment variables that other tools use. If neither names certificates,
aiohttp's own TLS context is used, which trusts the system's. Another context takes 20 ms to build,
and is built when the first https URL is read.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = frozenset({"ca_bundle", "proxy", "verify"})
"""Keys of ``storage_options`` that set the transport."""
AUTHORITIES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Environment variables that name a file of certificates; for S3, AWS_CA_BUNDLE precedes them."""

PROXIED = frozenset({"http", "https"})
"""Schemes of requests, which have a proxy each."""


@dataclass(frozen=True)
class Transport:
    """The certificates and the proxy with which a server is reached."""

    check: bool = True
    """True if the server's certificate must be valid."""
    authority: str | None = None
    """A PEM file of the certificates to trust, in place of the system's."""
    certificate: str | tuple[str, str] | None = None
    """The client's certificate: one PEM file, or a pair of certificate and key."""
    proxy: str | None = field(default=None, repr=False)
    """The proxy's URL; ``None``: the environment's proxy for each host, if any."""

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """The value of aiohttp's argument ``ssl``; the files are read anew each time."""
        if self.authority is None and self.certificate is None:
            return self.check
        try:
            return self._context()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"storage_options: the certificates of {self.authority or self.certificate} "
                f"cannot be used: {error.strerror or error}; name PEM files"
            ) from None

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority)
        if not self.check:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            files = self.certificate
            context.load_cert_chain(*([files] if isinstance(files, str) else files))
        return context


def transport_of(
    options: Mapping[str, Any],
    variables: tuple[str, ...] = AUTHORITIES,
    *,
    certificate: str | tuple[str, str] | None = None,
) -> Transport:
    """Return the transport that options and environment variables set.

    Args:
        options: ``verify``: a PEM file, or ``False`` for no checks; ``ca_bundle``: a PEM file;
            ``proxy``: a URL.
        variables: Variables that may name a PEM file; the first one that is set is used.
        certificate: The client's certificate.

    Raises:
        ConfigError: A file does not exist, or the proxy is not an http URL.
    """
    proxy = options.get("proxy")
    if proxy is not None and not _is_http_url(str(proxy)):
        raise ConfigError("storage_options: 'proxy' must be a URL such as http://host:3128")
    verify = options.get("verify", options.get("ca_bundle"))
    # Before the variables: what the user turns off, no environment turns on again.
    if verify is False:
        return Transport(check=False, certificate=certificate, proxy=proxy)
    named = {"storage_options' 'verify'": None if verify is True else verify}
    named |= {name: os.environ.get(name) for name in variables}
    authority = next(((name, path) for name, path in named.items() if path), None)
    if authority is None:
        return Transport(certificate=certificate, proxy=proxy)
    if not Path(authority[1]).is_file():
        raise ConfigError(
            f"{authority[0]} names {authority[1]}, which is not a file; name a PEM file"
        )
    return Transport(authority=str(authority[1]), certificate=certificate, proxy=proxy)


def check_proxies() -> None:
    """Check the environment's proxies, which aiohttp would take for a wrong URL of the object.

    Raises:
        ConfigError: One is not an http URL; the variable is named.
    """
    for scheme, proxy in getproxies_environment().items():
        if scheme in PROXIED and not _is_http_url(proxy):
            names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
            variable = next((name for name in names if os.environ.get(name)), names[1])
            raise ConfigError(
                f"{variable} is not an http URL; write http:// and the host, as in "
                f"{variable}=http://host:3128"
            )


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in PROXIED and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False
