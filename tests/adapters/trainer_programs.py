"""Runs the programs of test_huggingface.py and test_evaluation.py behind one import."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from tests.adapters import huggingface_program
from tests.adapters.torch_programs import run

if TYPE_CHECKING:
    from collections.abc import Callable


def evaluated(source: str) -> None:
    import_module("tests.adapters.evaluation_program").main(source, os.environ["MEETING"])


PROGRAMS: dict[str, Callable[[str], None]] = {
    "trained": partial(huggingface_program.main, place=os.environ["MEETING"]),
    "evaluated": evaluated,
}

if __name__ == "__main__":
    run(PROGRAMS, *sys.argv[1:])
