"""Exceptions wherever the interpreter can raise them, as Ctrl-C or a signal's handler does."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamrec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

SOURCE = str(Path(streamrec.__file__).parent)
CHECKS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME")
"""Instructions after which CPython looks whether a signal came, besides jumps back."""


class Interrupted(BaseException):
    """Raised out of nowhere, like ``KeyboardInterrupt``."""


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Raise ``Interrupted`` at a step of the package's code in this thread.

    Args:
        step: The number of the step, from 0, among the places where a signal is looked for. If the
            block has fewer of them, nothing is raised.
    """
    left = step
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "call":
            if not frame.f_code.co_filename.startswith(SOURCE):
                return None
            frame.f_trace = trace  # before the next: CPython 3.13 asks for no opcodes without one
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lasti in checked_offsets(frame.f_code):
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.cache
def checked_offsets(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a signal's handler may run."""
    instructions = list(dis.get_instructions(code))
    offsets = set()
    for one, following in itertools.pairwise(instructions):
        if one.opname in CHECKS:
            offsets.add(following.offset)
        elif one.opname.startswith("JUMP_BACKWARD"):
            offsets.add(int(one.argval))
    return frozenset(offsets)
