"""A helper that runs work in a forked child."""

from __future__ import annotations

import os
import pickle
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60
"""Seconds after which a child that hangs is ended, so that its test fails."""


def in_forked_child(work: Callable[[], Any]) -> Any:
    """Return the result of work in a forked child, or the exception that it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        os.write(writing, pickle.dumps(_outcome(work)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hung, or crashed"
    return pickle.loads(said)


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # noqa: BLE001 - for the parent to look at
        return error
