"""The rules of what may go over a network: where to listen, and where a token may be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.errors import ConfigError, FeederRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.config.daemon import DaemonSettings
    from streamrec.feeder.access.address import Address


def check_exposure(
    place: Address, server: DaemonSettings.Server, own: Mapping[str, Sequence[str]]
) -> None:
    """Refuse to listen where the network could read tokens, or data that it is not meant to.

    Args:
        place: Where to listen.
        server: The settings that say who may read.
        own: By name, the files of tokens of each dataset; a dataset may have no files.

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
    for_all = server.token is not None or bool(server.tokens)
    if not place.tls and (for_all or any(own.values())):
        raise ConfigError(
            f"{place}: clients would send their token in plain TCP over the network; listen at "
            "tls://, 127.0.0.1 or a Unix socket, or set no token"
        )
    has_client_ca = place.tls and server.tls is not None and server.tls.client_ca is not None
    if not (for_all or (own and all(own.values())) or has_client_ca or server.insecure):
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
