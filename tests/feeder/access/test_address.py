from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.server_settings import TlsSettings
from streamrec.errors import ConfigError, FeederRefused
from streamrec.feeder.access.address import (
    Address,
    check_exposure,
    check_received,
    check_sending,
    host_and_port,
    is_loopback,
    join_host,
)
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


HOSTS = st.sampled_from(["feeder", "127.0.0.1", "::1", "a.b-c.example"])
NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=10)
PATHS = st.from_regex(r"/[a-zA-Z0-9 #?%_.-]{1,20}", fullmatch=True)


@given(
    st.one_of(
        st.builds(
            Address, host=HOSTS, port=st.integers(1, 65535), dataset=NAMES, tls=st.booleans()
        ),
        st.builds(Address, path=PATHS, dataset=NAMES),
    )
)
def test_what_is_written_is_read(address: Address) -> None:
    assert Address.parse(str(address)) == address


@given(st.lists(st.tuples(HOSTS, st.integers(1, 65535)), min_size=1), NAMES, st.booleans())
def test_every_host_is_an_address(hosts: list[tuple[str, int]], name: str, tls: bool) -> None:
    places = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]
    text = f"{'tls' if tls else 'tcp'}://{','.join(places)}/{quote(name, safe='')}"
    expected = tuple(Address(host, port, dataset=name, tls=tls) for host, port in hosts)
    assert Address.parse_all(text) == expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://feeder:7070/train", Address(host="feeder", port=7070, dataset="train")),
        ("tcp://[::1]:7070/a%20b", Address(host="::1", port=7070, dataset="a b")),
        ("tls://feeder:7070/train", Address("feeder", 7070, dataset="train", tls=True)),
        ("unix:///run/f.sock#train", Address(path="/run/f.sock", dataset="train")),
        ("unix:///run/f.sock?dataset=train", Address(path="/run/f.sock", dataset="train")),
        ("unix:///run/f.sock?dataset=a+b%20c", Address(path="/run/f.sock", dataset="a+b c")),
        ("unix:////run/f.sock#train", Address(path="//run/f.sock", dataset="train")),
    ],
)
def test_to_connect_to(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse_all(text) == (address,)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:0", Address(host="127.0.0.1", port=0)),
        ("tls://[::]:7070", Address("::", 7070, tls=True)),
        ("unix:///run/f.sock", Address(path="/run/f.sock")),
    ],
)
def test_to_listen_at(text: str, address: Address) -> None:
    assert Address.parse(text, listen=True) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no ://"),
        ("train", "there is no ://"),
        ("feeder:7070/train", "there is no ://"),
        ("://feeder:7070/train", "the scheme is ''"),
        ("http://feeder:7070/train", "the scheme is 'http'"),
        ("tcp://feeder/train", "the port is missing"),
        ("tcp://:7070/train", "the host is missing"),
        ("tcp://feeder:70700/train", "out of range"),
        ("tcp://feeder:x/train", "could not be cast"),
        ("tcp://feeder:0/train", "port 0"),
        ("tcp://feeder:7070", "names no dataset"),
        ("tcp://feeder:7070/", "names no dataset"),
        ("tcp://feeder:7070/train?rank=1", "after the dataset"),
        ("tcp://feeder:7070/train#x", "after the dataset"),
        ("tcp://token@feeder:7070/train", "give it as token="),
        ("tcp://a:7070,b/train", "the port is missing"),
        ("tcp://a:7070,/train", "the host is missing"),
        ("tcp://a:7070,,b:7070/train", "the host is missing"),
        ("tcp://a:7070,b:0/train", "port 0"),
        ("tcp://::1:7070/train", "must stand in brackets"),
        ("tcp://a..b:7070/train", "between two dots of the host's name"),
        ("tcp://a:1,.b:7070/train", "between two dots of the host's name"),
        (f"tcp://{'x' * 64}.svc:7070/train", "between two dots of the host's name"),
        ("tcp://a\udcff:7070/train", "between two dots of the host's name"),
        ("tcp://a:1/%ff", "can't decode byte 0xff"),
        ("tcp://[::1:7070/train", "Invalid IPv6"),
        ("unix://run/f.sock#train", "must be absolute"),
        ("unix:///#train", "path is missing"),
        ("unix:///run/f.sock", "names no dataset"),
        ("unix:///run/f.sock?train", "only dataset=NAME may come"),
        ("unix:///run/f.sock?dataset=a&rank=1", "only dataset=NAME may come"),
        ("unix:///run/f.sock?dataset=a&dataset=b", "two datasets"),
        ("unix:///run/f.sock?dataset=", "names no dataset"),
        ("unix:///run/f.sock?dataset=a#b", "not both"),
        (f"unix:///{'x' * 107}#train", "108 bytes, but can have at most 107"),
    ],
)
def test_nonsense(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*; write tcp://HOST:PORT/DATASET, tls:"):
        Address.parse_all(text)


def test_a_dataset_is_not_listened_at() -> None:
    with pytest.raises(ConfigError, match=r"must not name a dataset; write tcp://HOST:PORT, tls"):
        Address.parse("tcp://127.0.0.1:7070/train", listen=True)


@pytest.mark.parametrize(("text", "listen"), [("tcp://a:1,b:2/x", False), ("tcp://a:1,b:2", True)])
def test_one_place_has_one_host(text: str, listen: bool) -> None:
    with pytest.raises(ConfigError, match="it names several hosts, but must name one"):
        Address.parse(text, listen=listen)


def test_a_secret_in_an_address_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="give it as token=") as caught:
        Address.parse_all("tcp://user:hidden@feeder:7070/train")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert Address(host=host, port=1).is_loopback


@pytest.mark.parametrize(
    "host", ["feeder", "0.0.0.0", "10.0.0.1", "::", "::ffff:10.0.0.1", "localhost.example"]
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_unix_socket_is_local() -> None:
    assert Address(path="/a").is_loopback


def test_host_and_port() -> None:
    assert host_and_port("127.0.0.1:7071") == ("127.0.0.1", 7071)
    assert host_and_port("[::1]:0") == ("::1", 0)
    for text in ("127.0.0.1:7071", "[::1]:0", "feeder.svc.:7071", "bücher.example:1"):
        assert join_host(*host_and_port(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":7071", "host:x", "a:1/b", "host:70700", "[::1", "a..b:7071"]
)
def test_no_host_and_port(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        host_and_port(text)


def test_far_feeders_stand_behind_a_semicolon() -> None:
    found = Address.parse_all("tcp://a:1,b:2;c:3,d:4/train")
    assert [(one.host, one.is_far) for one in found] == [
        ("a", False), ("b", False), ("c", True), ("d", True)
    ]  # fmt: skip
    for wrong in ("tcp://a:1;b:2;c:3/train", "tcp://;b:2/train", "tcp://a:1;/train"):
        with pytest.raises(ConfigError, match="is not an address of a feeder"):
            Address.parse_all(wrong)
