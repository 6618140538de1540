"""torchdata's tests of states, over streams."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from tests.outside.result import Result, checkout

__all__ = ["states"]


def states() -> Result:
    """The tests of torchdata's loader, with ours in it, and with ours in its place."""
    result = Result("torchdata's tests of states")
    root = checkout(result, "STREAMREC_TEST_TORCHDATA", "test/stateful_dataloader")
    if root is None:
        return result
    if not all(map(find_spec, ("torchdata", "parameterized"))):
        result.missing = "torchdata and parameterized"
        return result
    for way in ("inside", "instead"):
        command = [sys.executable, "-m", "tests.outside.torchdata_states", str(root), way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            result.differing[way] = done.stderr[-400:]
            continue
        counts = json.loads(done.stdout.splitlines()[-1])
        result.agreeing += counts["tests"] - len(counts["wrong"])
        result.differing |= {f"{way}: {name}": text for name, text in counts["wrong"].items()}
    return result
