"""The callers of a function: the one place that looks at their frames.

A framework that iterates a stream does not say why: to train, to evaluate, or to look at a batch;
nor that it divides the batches itself. Its objects are among the callers, and say it.
"""

from __future__ import annotations

import sys
import warnings
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from types import CodeType, FrameType

T = TypeVar("T")

_PACKAGE = __name__.partition(".")[0]


def module_of(above: int) -> str | None:
    """Return the name of a caller's module.

    Args:
        above: 1 for who calls the function that asks, 2 for its caller, and so on.
    """
    name: str | None = sys._getframe(above + 1).f_globals.get("__name__")  # noqa: SLF001 - public
    return name


def arguments_of(above: int) -> Mapping[str, Any]:
    """Return the arguments of a caller, and its other variables; ``above`` as of `module_of`."""
    return sys._getframe(above + 1).f_locals  # noqa: SLF001 - its documented name


def nearest(*kinds: type) -> Any:
    """Return the nearest caller that is a method of one of these classes' objects: the object.

    ``None``: there is none.
    """
    selves = (frame.f_locals.get("self") for frame in _frames())
    return next((one for one in selves if isinstance(one, kinds)), None)


def runs(methods: Collection[str], kind: type) -> bool:
    """Return whether a method of one of these names, of an object of this class, calls."""
    frames = (frame for frame in _frames() if frame.f_code.co_name in methods)
    return any(isinstance(frame.f_locals.get("self"), kind) for frame in frames)


def running(codes: Mapping[CodeType | None, T]) -> Iterator[tuple[T, Any]]:
    """Yield each caller that runs one of these codes: the code's value, and the object."""
    for frame in _frames():
        if frame.f_code in codes:
            yield codes[frame.f_code], frame.f_locals["self"]


def warn_user(message: str) -> None:
    """Warn, and point at the code that uses streamrec.

    That is the nearest caller whose module is not of streamrec.
    """
    ours = (_is_ours(frame) for frame in _frames())
    warnings.warn(message, stacklevel=2 + sum(1 for _ in takewhile(bool, ours)))


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE


def _frames() -> Iterator[FrameType]:
    """Return the frames from who asks a function of this file outwards."""
    # Not ``traceback.walk_stack``: how many frames it leaves out depends on Python's version.
    return _outwards(sys._getframe(2))  # noqa: SLF001 - its documented name


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
