"""The feeder protocol, without I/O: messages, frames and the state machine of both ends."""

from __future__ import annotations
