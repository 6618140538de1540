from __future__ import annotations

from typing import Any

import pytest

from streamrec.config.access import TlsSettings
from streamrec.errors import ConfigError, FeederRefused
from streamrec.feeder.access.address import Address
from streamrec.feeder.access.exposure import check_exposure, check_received, check_sending
from tests.feeder.support import server_settings

ABROAD = Address(host="0.0.0.0", port=7070)
ABROAD_BY_TLS = Address(host="0.0.0.0", port=7070, tls=True)
HERE = [Address(path="/a"), Address(host="::1", port=1)]
TLS = TlsSettings(cert="feeder.pem")
MUTUAL = TlsSettings(cert="feeder.pem", client_ca="ca.pem")


def check(place: Address, *own: list[str], **server: Any) -> None:
    check_exposure(place, server_settings(**server), {str(n): some for n, some in enumerate(own)})


@pytest.mark.parametrize("place", HERE)
@pytest.mark.parametrize("server", [{}, {"token": "t"}, {"tokens": ["a"]}])
def test_this_machine_shows_nothing(place: Address, server: dict[str, Any]) -> None:
    check(place, ["b"], **server)


@pytest.mark.parametrize("own", [[], [[]], [["a"], []]])
@pytest.mark.parametrize(("place", "tls"), [(ABROAD, MUTUAL), (ABROAD_BY_TLS, TLS)])
def test_nobody_listens_abroad_for_everybody(
    place: Address, tls: TlsSettings, own: list[list[str]]
) -> None:
    if place.tls or not any(own):
        with pytest.raises(ConfigError, match=r"0\.0\.0\.0:7070: .* or set insecure = true"):
            check(place, *own, tls=tls)
        check(place, *own, tls=tls, insecure=True)


@pytest.mark.parametrize("server", [{"token": "t"}, {"tokens": ["a"]}, {"own": ["a"]}])
@pytest.mark.parametrize("insecure", [False, True])
def test_no_token_crosses_the_network_in_plain_tcp(server: dict[str, Any], insecure: bool) -> None:
    own = server.get("own", [])
    others = {name: value for name, value in server.items() if name != "own"}
    with pytest.raises(ConfigError, match="their token in plain TCP"):
        check(ABROAD, own, tls=MUTUAL, insecure=insecure, **others)
    check(ABROAD_BY_TLS, own, tls=TLS, **others)


def test_clients_with_certificates_need_no_token() -> None:
    check(ABROAD_BY_TLS, [], tls=MUTUAL)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_tls_needs_a_certificate(host: str) -> None:
    with pytest.raises(ConfigError, match="TLS needs a certificate"):
        check(Address(host, 1, tls=True), insecure=True)


def test_no_token_is_sent_in_plain_tcp() -> None:
    for place in (*HERE, ABROAD_BY_TLS):
        check_sending(place, "secret")
    check_sending(ABROAD, None)
    with pytest.raises(ConfigError, match=r"not sent over plain TCP to 0\.0\.0\.0") as caught:
        check_sending(ABROAD, "secret")
    assert "secret" not in str(caught.value)


def test_no_token_is_taken_in_plain_tcp() -> None:
    check_received("secret", is_private=True)
    check_received("", is_private=False)
    with pytest.raises(FeederRefused, match="replace that token") as caught:
        check_received("secret", is_private=False)
    assert caught.value.code == "token"
    assert "secret" not in str(caught.value)
