"""Addresses of feeders and their datasets, as text, and what they would show to the network.

::

    tcp://feeder:7070/train                  the dataset "train" of the feeder at that host and port
    tcp://a:7070,b:7070/train                the same dataset of two feeders
    tcp://a:7070,b:7070;c:7070/train         the same of two that are near, and one that is far
    tls://feeder:7070/train                  over TLS
    tcp://[::1]:7070/train                   with an IPv6 address
    unix:///run/feeder.sock#train            the dataset "train" behind that socket file
    unix:///run/feeder.sock?dataset=train    the same

The dataset of a Unix socket stands behind ``#`` or ``?dataset=``, because everything before it is a
path. Where a feeder is told to listen, there is no dataset. Names are percent-decoded.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs, quote, unquote, urlsplit

from streamrec.config.arguments import kind_of
from streamrec.errors import ConfigError, FeederRefused
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.config.server_settings import ServerSettings


def check_exposure(
    place: Address, server: ServerSettings, token_files: Mapping[str, Sequence[str]]
) -> None:
    """Refuse to listen where the network could read tokens, or data that it is not meant to.

    Args:
        place: Where to listen.
        server: The settings that say who may read.
        token_files: By name, the files of tokens of each dataset; a dataset may have no files.

    Raises:
        ConfigError: It is beyond this machine, and that is not allowed; or it lacks a certificate.
    """
    if place.tls and server.tls is None:
        raise ConfigError(
            f"{place}: TLS needs a certificate; name its files in [server]: "
            'tls = { cert = "feeder.pem", key = "feeder.key" }'
        )
    if place.is_loopback:
        return
    # One dataset without a token is enough to be read by whoever reaches the address.
    for_all = server.token is not None or bool(server.tokens)
    if not place.tls and (for_all or any(token_files.values())):
        raise ConfigError(
            f"{place}: clients would send their token in plain TCP over the network; listen at "
            "tls://, 127.0.0.1 or a Unix socket, or set no token"
        )
    has_client_ca = place.tls and server.tls is not None and server.tls.client_ca is not None
    if not (
        for_all or (token_files and all(token_files.values())) or has_client_ca or server.insecure
    ):
        raise ConfigError(
            f"{place}: whoever reaches it could read datasets; listen at tls:// and set tokens or "
            "tls.client_ca, or listen at 127.0.0.1 or a Unix socket, or set insecure = true in "
            "[server] where the network lets nobody else connect"
        )


def check_sending(place: Address, token: str | None) -> None:
    """Refuse to send a token where the network could read it.

    Raises:
        ConfigError: The place is beyond this machine, and not reached by TLS.
    """
    if token and not place.tls and not place.is_loopback:
        raise ConfigError(
            f"a token is not sent over plain TCP to {place.host}: everybody on the way could read "
            "it; use tls://, a Unix socket, or a tunnel that ends at localhost"
        )


def check_received(token: str, *, is_private: bool) -> None:
    """Refuse a token that the network could read on its way.

    Args:
        token: The token, empty if none came.
        is_private: It came by TLS, or from this machine.

    Raises:
        FeederRefused: It has been seen, perhaps.
    """
    if token and not is_private:
        raise FeederRefused(
            "a token came over plain TCP, where everybody on the way could read it; replace that "
            "token, and connect to tls://, a Unix socket or localhost",
            code="token",
        )


LONGEST_PATH = 107
"""Bytes: ``sun_path`` of Linux holds 108, with the 0 at the end."""
LISTENING = "tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH"
CONNECTING = (
    "tcp://HOST:PORT/DATASET, tls://HOST:PORT/DATASET (several HOST:PORT with commas between, and "
    "far ones behind a ;) or unix:///PATH#DATASET"
)


@dataclass(frozen=True)
class Address:
    """One place to listen or to connect to."""

    host: str | None = None
    port: int | None = None
    """With ``host``: TCP; 0 picks a free one, for listening."""
    path: str | None = None
    """A Unix socket."""
    dataset: str | None = None
    tls: bool = False
    """With ``host``: TCP with TLS in it."""
    ip: str | None = None
    """One of the numbers that the host's name stands for; ``None``: it was not looked up."""
    is_far: bool = False
    """True for a feeder that is taken only where no near one answers."""

    @classmethod
    def parse(cls, text: str, *, listen: bool = False) -> Address:
        """Read the address of one place.

        Args:
            text: ``tcp://host:port/dataset`` or ``unix:///path#dataset``.
            listen: Without a dataset; port 0 is allowed.

        Raises:
            ConfigError: It is something else, or names several hosts.
        """
        addresses = _parse(text, listen=listen)
        if len(addresses) > 1:
            _refuse(text, "it names several hosts, but must name one", listen=listen)
        return addresses[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Address, ...]:
        """Read where to connect to: one address for each host that is named.

        Args:
            text: ``tcp://a:7070,b:7070/dataset``, ``tls://...`` or ``unix:///path#dataset``.

        Raises:
            ConfigError: It is something else.
        """
        return _parse(text, listen=False)

    @property
    def is_name(self) -> bool:
        """True if the host is a name, which may stand for several machines."""
        if self.host is None:
            return False
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False

    @property
    def is_looked_up(self) -> bool:
        """True unless the host is a name without the machine that it stands for."""
        return self.ip is not None or not self.is_name

    @property
    def is_loopback(self) -> bool:
        """True if only this machine is involved."""
        return self.host is None or is_loopback(self.host)

    def __str__(self) -> str:
        name = quote(self.dataset or "", safe="")
        if self.host is None:
            return f"unix://{quote(self.path or '')}{'#' if name else ''}{name}"
        place = join_host(self.host, self.port or 0)
        scheme = "tls" if self.tls else "tcp"
        number = "" if self.ip in (None, self.host) else f" ({self.ip})"
        return f"{scheme}://{place}{'/' if name else ''}{name}{number}"


def _parse(text: str, *, listen: bool) -> tuple[Address, ...]:
    if not isinstance(text, str):
        raise ConfigError(
            f"{kind_of(text)} is not an address of a feeder; give one, as text: "
            f"{LISTENING if listen else CONNECTING}"
        )
    scheme, separator, rest = text.partition("://")
    try:
        _check(separator, "there is no ://")
        addresses = (_unix(rest),) if scheme == "unix" else _hosts(scheme, rest)
        _check_dataset(addresses, listen=listen)
    except ValueError as error:
        _refuse(text, str(error), listen=listen)
    return addresses


def _refuse(text: str, reason: str, *, listen: bool) -> NoReturn:
    form = LISTENING if listen else CONNECTING
    raise ConfigError(
        f"{masked(text)!r} is not an address of a feeder: {reason}; write {form}"
    ) from None


def _hosts(scheme: str, rest: str) -> tuple[Address, ...]:
    _check(scheme in ("tcp", "tls"), f"the scheme is {scheme!r}")
    _check("?" not in rest and "#" not in rest, "there is something after the dataset's name")
    # By hand: urlsplit knows one host, and an address may name several.
    hosts, _, path = rest.partition("/")
    _check("@" not in hosts, "a token is not part of the address: give it as token=")
    dataset = unquote(path, errors="strict") or None
    groups = hosts.split(";")
    _check(len(groups) <= 2, "it has more than one ;")
    return tuple(
        Address(*_host_and_port(one), dataset=dataset, tls=scheme == "tls", is_far=number > 0)
        for number, group in enumerate(groups)
        for one in group.split(",")
    )


def _host_and_port(text: str) -> tuple[str, int]:
    _check(text.startswith("[") or text.count(":") < 2, "an IPv6 address must stand in brackets")
    parts = urlsplit(f"//{text}")
    # It differs where a path follows, or a tab or line break that urlsplit drops.
    _check(parts.netloc == text and parts.hostname is not None, "the host is missing")
    _check(parts.port is not None, "the port is missing")
    host = str(parts.hostname)
    try:
        host.encode("idna")  # as sockets do, whose error is not an OSError
    except UnicodeError:
        _check(
            False,
            "a part between two dots of the host's name is empty, longer than 63 "
            "characters, or not text",
        )
    return host, int(parts.port or 0)


def _unix(rest: str) -> Address:
    before, _, name = rest.partition("#")
    quoted, _, query = before.partition("?")
    _check(quoted.startswith("/"), "the path after unix:// must be absolute")
    path = unquote(quoted, errors="strict")
    _check(len(path) > 1, "the path is missing")
    size = len(path.encode())
    _check(size <= LONGEST_PATH, f"the path has {size} bytes, but can have at most {LONGEST_PATH}")
    _check(not (query and name), "the dataset must come after '#' or '?', not both")
    dataset = _dataset_of_query(query) if query else unquote(name, errors="strict")
    return Address(path=path, dataset=dataset or None)


def _dataset_of_query(query: str) -> str:
    """Return the dataset of ``dataset=NAME``."""
    # A plus is a plus here: only forms of web pages mean a space by it.
    query_values = parse_qs(query.replace("+", "%2B"), keep_blank_values=True, errors="strict")
    _check(query_values.keys() == {"dataset"}, "only dataset=NAME may come after '?'")
    _check(len(query_values["dataset"]) == 1, "it names two datasets")
    return query_values["dataset"][0]


def _check_dataset(addresses: tuple[Address, ...], *, listen: bool) -> None:
    if listen:
        _check(addresses[0].dataset is None, "an address to listen at must not name a dataset")
    else:
        _check(addresses[0].dataset is not None, "it names no dataset")
        _check(all(one.port != 0 for one in addresses), "port 0 cannot be connected to")


def _check(valid: Any, message: str) -> None:
    if not valid:
        raise ValueError(message)


def is_loopback(host: str) -> bool:
    """Return True if a host can only be this machine; names are not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # RFC 6761: this name is never another machine's.
        return host.lower() == "localhost"
    # A socket that listens at "::" calls 127.0.0.1 "::ffff:127.0.0.1".
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def join_host(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(text: str) -> tuple[str, int]:
    """Read ``host:port``, as the status page's address is written.

    Raises:
        ConfigError: It is something else.
    """
    try:
        return _host_and_port(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not HOST:PORT: {error}") from None
