"""The check of the stream that an adapter is given."""

from __future__ import annotations

from typing import Any

from streamrec.errors import ConfigError


def check_stream(stream: Any, call: str) -> None:
    """Refuse what is not a stream at once, not only when it is iterated.

    Args:
        stream: The argument.
        call: The adapter's function, for the error.

    Raises:
        ConfigError: It is something else.
    """
    if not hasattr(stream, "state_dict"):
        raise ConfigError(
            f"{call} takes a stream, not {type(stream).__name__}; give it "
            "streamrec.open(source, features, batch_size=...) or streamrec.connect(address)"
        )
