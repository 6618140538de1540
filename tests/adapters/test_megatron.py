"""The calls of Energon's loader; test_elastic_training.py trains with them on many ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.adapters.test_torch_workers import PATIENCE, ROOT
from tests.adapters.torch_shards import write_examples

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.timeout(2 * PATIENCE),
]

PROGRAM = """
import json, sys
from itertools import islice
import streamrec as sr
from streamrec.adapters.megatron import SavableStream
from tests.adapters.torch_shards import ELASTIC

def loader():
    return SavableStream(sr.open(sys.argv[1], **{**ELASTIC, "epochs": 1}))

def ids(batches):
    return [batch["id"].tolist() for batch in batches]

first, said = loader(), {"length": len(loader())}
said["head"] = ids(islice(first, 3))
rank, all_ranks = first.save_state_rank(), first.save_state_global(0)
said["tail"] = ids(first)
for name, call, state in (
    ("rank", "restore_state_rank", rank),
    ("global", "restore_state_global", all_ranks),
    ("none", "restore_state_rank", None),
):
    other = loader()
    getattr(other, call)(state)
    said[name] = ids(other)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    source = write_examples(tmp_path_factory.mktemp("examples"), 60)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, source]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_goes_on_from_the_state_of_a_rank_or_of_all(said: dict[str, Any]) -> None:
    assert said["length"] == 5
    assert len(said["head"]) == 3
    assert said["rank"] == said["global"] == said["tail"]
    assert said["none"] == said["head"] + said["tail"]


@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
def test_the_calls_are_those_of_energon() -> None:
    program = """
import inspect
from megatron.energon import SavableDataLoader
from streamrec.adapters.megatron import SavableStream
for name in "save_state_rank", "restore_state_rank", "save_state_global", "restore_state_global":
    ours, theirs = (list(inspect.signature(getattr(kind, name)).parameters)
                    for kind in (SavableStream, SavableDataLoader))
    assert ours == theirs, (name, ours, theirs)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, check=True)
