"""Addresses of feeders and their datasets, as text.

::

    tcp://feeder:7070/train              the dataset "train" of the feeder at that host and port
    tcp://[::1]:7070/train               the same, with an IPv6 address
    unix:///run/feeder.sock#train        the dataset "train" behind that socket file

The dataset of a Unix socket stands behind ``#``, because everything before it is a path. Where a
feeder is told to listen, there is no dataset. Names are percent-decoded.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from streamrec.config.arguments import kind_of
from streamrec.errors import ConfigError

__all__ = ["Address", "check_exposure", "host_and_port", "is_loopback"]

LONGEST_PATH = 107
"""Bytes: ``sun_path`` of Linux holds 108, with the 0 at the end."""


@dataclass(frozen=True)
class Address:
    """One place to listen or to connect to."""

    host: str | None = None
    port: int | None = None
    """With ``host``: TCP; 0 picks a free one, for listening."""
    path: str | None = None
    """A Unix socket."""
    dataset: str | None = None

    @classmethod
    def parse(cls, text: str, *, listen: bool = False) -> Address:
        """Read an address.

        Args:
            text: ``tcp://host:port/dataset`` or ``unix:///path#dataset``.
            listen: Without a dataset; port 0 is allowed.

        Raises:
            ConfigError: It is something else.
        """
        form = "tcp://HOST:PORT or unix:///PATH"
        form = form if listen else "tcp://HOST:PORT/DATASET or unix:///PATH#DATASET"
        if not isinstance(text, str):
            raise ConfigError(
                f"{kind_of(text)} is no address of a feeder; give one, as text: {form}"
            )
        try:
            parts = urlsplit(text)
            address = _tcp(parts) if parts.scheme == "tcp" else _unix(parts)
            _check_dataset(address, listen=listen)
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is no address of a feeder: {error}; write {form}"
            ) from None
        return address

    @property
    def is_loopback(self) -> bool:
        """True if only this machine is involved."""
        return self.host is None or is_loopback(self.host)

    def __str__(self) -> str:
        name = quote(self.dataset or "", safe="")
        if self.host is None:
            return f"unix://{quote(self.path or '')}{'#' if name else ''}{name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}{'/' if name else ''}{name}"


def _tcp(parts: SplitResult) -> Address:
    _check(not parts.query and not parts.fragment, "there is something behind the dataset's name")
    _check(parts.username is None, "a token is not part of the address: give it as token=")
    _check(parts.hostname is not None, "the host is missing")
    _check(parts.port is not None, "the port is missing")
    dataset = unquote(parts.path.removeprefix("/"))
    return Address(host=parts.hostname, port=parts.port, dataset=dataset or None)


def _unix(parts: SplitResult) -> Address:
    _check(parts.scheme == "unix", f"the scheme is {parts.scheme!r}")
    _check(not parts.netloc, "what stands behind unix:// is no absolute path")
    _check(not parts.query, "there is a '?'")
    path = unquote(parts.path)
    _check(len(path) > 1, "the path is missing")
    size = len(path.encode())
    _check(size <= LONGEST_PATH, f"the path has {size} bytes, {LONGEST_PATH} are possible")
    return Address(path=path, dataset=unquote(parts.fragment) or None)


def _check_dataset(address: Address, *, listen: bool) -> None:
    if listen:
        _check(address.dataset is None, "a feeder that listens names no dataset")
    else:
        _check(address.dataset is not None, "it names no dataset")
        _check(address.port != 0, "port 0 cannot be connected to")


def _check(valid: Any, message: str) -> None:
    if not valid:
        raise ValueError(message)


def is_loopback(host: str) -> bool:
    """Return True if a host can only be this machine; names are not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    # A socket that listens at "::" calls 127.0.0.1 "::ffff:127.0.0.1".
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def check_exposure(place: Address, *, token: bool, insecure: bool) -> None:
    """Refuse to listen where the network could read tokens, or data that it is not meant to.

    Args:
        place: Where to listen.
        token: Clients send a token.
        insecure: Everybody who reaches the place may read the datasets.

    Raises:
        ConfigError: It is beyond this machine, and that is not allowed.
    """
    if place.is_loopback:
        return
    if token:
        raise ConfigError(
            f"{place}: clients would send their token in plain TCP over the network; listen at "
            "127.0.0.1 or a Unix socket, or set no token"
        )
    if not insecure:
        raise ConfigError(
            f"{place}: whoever reaches it could read every dataset, for there is no TLS; listen at "
            "127.0.0.1 or a Unix socket, or set insecure = true in [server] where the network lets "
            "nobody else connect"
        )


def host_and_port(text: str) -> tuple[str, int]:
    """Read ``host:port``, as the status page's address is written.

    Raises:
        ConfigError: It is something else.
    """
    try:
        parts = urlsplit(f"//{text}")
        _check(parts.netloc == text and parts.hostname, "the host is missing")
        _check(parts.port is not None, "the port is missing")
    except ValueError as error:
        raise ConfigError(f"{text!r} is no HOST:PORT: {error}") from None
    return str(parts.hostname), int(parts.port or 0)
