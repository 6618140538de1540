"""The context of TLS for a feeder's connections, which keeps the alerts that OpenSSL writes."""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from typing import Any

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
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, Handshake)
        made.outgoing = outgoing
        present_handshakes.get([]).append(made)
        return made
