"""The settings of a feeder itself, which the engine process has too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from streamrec.config.dataset import large_enough
from streamrec.config.lazy_settings import LazySettings

if TYPE_CHECKING:
    from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SecretStr

    from streamrec.config.validation import Bytes, NonEmpty, Wait

_LOOPBACK = ["tcp://127.0.0.1:7070"]
_NONE: list[str] = []


class TlsSettings(LazySettings):
    """The PEM files of ``tls://`` addresses; they are read again when they change."""

    cert: NonEmpty
    """The feeder's certificate, with the intermediate ones behind it."""
    key: NonEmpty | None = None
    """Its private key; ``None``: it is in ``cert``."""
    client_ca: NonEmpty | None = None
    """The authorities that sign clients' certificates; ``None``: clients need none."""


def _lower(level: object) -> object:
    return level.lower() if isinstance(level, str) else level


def _collector(address: str | None) -> str | None:
    # No address is right, too, so that any valid one stands for it.
    parts = urlsplit(address or "http://off")
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError(
            "must be http://host:port or https://host:port of a collector; credentials go into "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    return address or None


class ServerSettings(LazySettings):
    """The settings of the daemon itself: its addresses, limits and timeouts."""

    listen: Annotated[list[str], Field(min_length=1)] = _LOOPBACK
    """``tcp://host:port``, ``tls://host:port`` or ``unix:///path``; port 0 picks a free one."""
    status: Annotated[str | None, AfterValidator(lambda status: status or None)] = "127.0.0.1:7071"
    """``host:port`` of the status page, ``/livez``, ``/readyz``, ``/metrics`` and
    ``/status.json``; ``""`` or ``None`` for none."""
    status_hosts: list[str] = _NONE
    """Names, without a port, to which the status page answers. It always answers to its address
    and, on this machine, to ``localhost``; elsewhere an empty list means every name."""
    workers: PositiveInt | Literal["auto"] = 1
    """Processes that serve clients; auto: as many as there are cores to use."""
    memory_budget: Annotated[Bytes | Literal["auto"], AfterValidator(large_enough)] = "auto"
    """Bytes that all sessions together may take; auto: half of the memory limit."""
    max_bytes: Annotated[Bytes, Field(gt=0)] | Literal["auto"] = "auto"
    """Bytes of the largest batch of any dataset, and of what decoding its pictures takes
    besides; auto: a quarter of the memory budget, 48 MiB at least."""
    max_pixels: PositiveInt | Literal["auto"] = "auto"
    """Pixels of the largest picture of any dataset; auto: as many as max_bytes, and 89,478,485
    at most."""
    tls: TlsSettings | None = None
    """The certificate of ``tls://`` addresses."""
    token: Annotated[SecretStr, Field(min_length=1)] | None = None
    """A token that opens all datasets. Beyond this machine tokens need TLS."""
    tokens: list[NonEmpty] = _NONE
    """Files of tokens that open all datasets."""
    insecure: bool = False
    """True: listen beyond this machine, though anybody who can connect can read."""
    grace: Wait = 30.0
    """Seconds after SIGTERM in which batches already under way are finished."""
    max_connections: PositiveInt = 1024
    """The most clients; others are sent elsewhere."""
    max_connections_per_address: PositiveInt = 256
    """The most clients at one address of another machine."""
    max_handshakes: PositiveInt = 256
    """The most connections that have not finished their handshake; the oldest are closed."""
    max_frames_per_second: PositiveInt = 2000
    """The most messages of one client in a second; one that sends more is cut. A client
    sends two for 16 MiB that it takes from shared memory: 1,200 at the speed of a core."""
    shared_memory: Annotated[Bytes, Field(ge=0)] | Literal["auto"] = "auto"
    """Bytes of memory that clients on this machine together may share with the daemon, beside
    the budget; auto: a quarter of the memory limit; 0: none."""
    handshake_timeout: Wait = 10.0
    """Seconds to wait for HELLO, and after WELCOME for SUBSCRIBE and CREDIT."""
    idle_timeout: Wait = 7200.0
    """Seconds that a client may be silent before its connection is closed."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = (
        "info"
    )
    """The least level of what is logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """JSON lines, or text for people; auto: text where standard error is a terminal."""

    traces: Annotated[str | None, AfterValidator(_collector)] = None
    """``http://host:port`` of a collector of OpenTelemetry traces. Without it, the standard
    variables ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like decide."""
