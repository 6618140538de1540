"""The user's functions on their way to the private engine process, by value.

They are pickled into the settings that a process writes to the standard input of its own child.
Nothing else is ever unpickled, and nothing that came over a socket.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.pipeline.functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Unsendable", "pickled", "unpickled"]


class Unsendable(ConfigError):
    """A function that no other process can be given."""


def pickled(setting: str, function: Callable[..., Any]) -> str:
    """Pickle a function by value, with all that it refers to, for a process of this program's own.

    Args:
        setting: The name of the setting, for errors.
        function: The function.

    Returns:
        The pickle in base64, for :func:`unpickled`.

    Raises:
        Unsendable: It refers to something that cannot be pickled, such as a lock or an open file.
    """
    import cloudpickle  # late: few streams have such a function

    try:
        return b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:
        raise Unsendable(
            f"the setting {setting!r} is {name_of(function)}, which the engine process cannot be "
            f"given ({type(error).__name__}: {error}); have the function make or import what it "
            'refers to, or set engine="thread"'
        ) from error


def unpickled(setting: str, data: str) -> Callable[..., Any]:
    """Return the function that :func:`pickled` has pickled in the parent process.

    Raises:
        ConfigError: A module that it refers to cannot be imported here.
    """
    import cloudpickle

    try:
        function: Callable[..., Any] = cloudpickle.loads(b64decode(data))
    except Exception as error:
        raise ConfigError(
            f"the engine process cannot load the function of the setting {setting!r} "
            f'({type(error).__name__}: {error}); check PYTHONPATH, or set engine="thread"'
        ) from error
    return function
