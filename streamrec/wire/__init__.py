"""The feeder protocol, without I/O: messages, frames and the state machine of both ends."""

from __future__ import annotations

from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Message,
    Ping,
    Pong,
    Release,
    Shared,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import PROTOCOL_VERSIONS, Connection, Role, State

__all__ = [
    "PROTOCOL_VERSIONS",
    "BatchMessage",
    "Connection",
    "Credit",
    "End",
    "Fault",
    "Goaway",
    "Hello",
    "Message",
    "Ping",
    "Pong",
    "Release",
    "Role",
    "Shared",
    "State",
    "Statistics",
    "Subscribe",
    "Welcome",
]
