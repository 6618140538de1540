"""The configuration of the daemon."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, ByteSize, Field, PositiveFloat, PositiveInt, SecretStr

from streamrec.config.dataset import DatasetSettings, large_enough
from streamrec.config.validation import Settings, validate
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DaemonSettings", "load_daemon"]

_Wait: TypeAlias = Annotated[float, Field(gt=0, le=1e7)]
"""Seconds, up to 115 days: an event loop cannot set a longer timer."""


class DaemonSettings(Settings):
    """The configuration of ``streamrec serve``: ``[server]`` and ``[datasets.NAME]`` tables."""

    class Server(Settings):
        """The settings of the daemon itself: its addresses, limits and timeouts."""

        listen: list[str] = Field(default=["tcp://127.0.0.1:7070"], min_length=1)
        """``tcp://host:port`` or ``unix:///path``; port 0 picks a free one."""
        status: Annotated[str | None, AfterValidator(lambda status: status or None)] = (
            "127.0.0.1:7071"
        )
        """``host:port`` of ``/livez``, ``/readyz``, ``/metrics`` and ``/status.json``; ``""`` or
        ``None`` for none."""
        memory_budget: Annotated[ByteSize | Literal["auto"], AfterValidator(large_enough)] = "auto"
        """Bytes that all sessions together may take; auto: half of the memory limit."""
        token: SecretStr | None = None
        """The token that clients must present. Over TCP beyond loopback it is refused, since it
        would need TLS."""
        insecure: bool = False
        """True: listen beyond this machine, though anybody who can connect can read."""
        grace: PositiveFloat = 30.0
        """Seconds after SIGTERM in which batches already under way are finished."""
        max_connections: PositiveInt = 1024
        """The most clients; others are sent elsewhere."""
        max_connections_per_address: PositiveInt = 256
        """The most clients at one address of another machine."""
        max_handshakes: PositiveInt = 256
        """The most connections that have not finished their handshake; the oldest are closed."""
        handshake_timeout: _Wait = 10.0
        """Seconds to wait for HELLO, and after WELCOME for SUBSCRIBE and CREDIT."""
        idle_timeout: _Wait = 7200.0
        """Seconds that a client may be silent before its connection is closed."""

    server: Server = Server()
    datasets: dict[str, DatasetSettings] = Field(min_length=1)

    @classmethod
    def table_of(cls, location: Sequence[int | str]) -> tuple[type[Settings], int]:
        """Return the table of a location: the daemon's, a dataset's, or the whole file."""
        if len(location) == 1:
            return cls, 1
        return (cls.Server, 2) if location[0] == "server" else (DatasetSettings, 3)


def load_daemon(path: str | Path) -> DaemonSettings:
    """Read the daemon's TOML file.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or a setting is wrong.
    """
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); name a readable TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); correct the file") from None
    return validate(DaemonSettings, values, where=str(path))
