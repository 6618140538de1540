from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.adapters.jax import agree, gather
from streamrec.errors import ConfigError
from tests.adapters.test_torch import claim_of, open_rank
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def collective(others: list[str]) -> Callable[[Any], Any]:
    """Return a stand-in for JAX's, where the other processes have these texts."""
    rows = [np.frombuffer(text.encode(), np.uint8) for text in others]

    def allgather(array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == np.int32:
            return np.array([array, *([len(row)] for row in rows)])
        return np.stack([array, *(np.resize(row, len(array)) for row in rows)])

    return allgather


@given(st.text(), st.lists(st.text(min_size=1), max_size=4))
def test_texts_of_any_length_are_gathered(text: str, others: list[str]) -> None:
    assert gather(text, collective(others)) == [text, *others]


def test_a_process_alone_gets_no_axis() -> None:
    assert gather("alone", lambda array: array) == ["alone"]


def fake_jax(monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
    multihost_utils = ModuleType("jax.experimental.multihost_utils")
    multihost_utils.__dict__["process_allgather"] = collective(others)
    experimental = ModuleType("jax.experimental")
    experimental.__dict__["multihost_utils"] = multihost_utils
    for module in (ModuleType("jax"), experimental, multihost_utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, ((40,) * 9, (30,) * 8))
    others = [claim_of(source, 1), claim_of(source, 1, batch_size=3)]
    with open_rank(source, 0) as stream:
        fake_jax(monkeypatch, others[:1])
        agree(stream)
        fake_jax(monkeypatch, others[1:])
        with pytest.raises(ConfigError, match="global_batch is 4 in process 0 and 6 in process 1"):
            agree(stream)


PROGRAM = """
import sys, streamrec as sr
from streamrec.adapters.jax import agree
with sr.open(sys.argv[1], engine="thread") as stream:
    agree(stream)
    print("agreed")
"""


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_with_the_real_one(tmp_path: Path) -> None:
    source = write(tmp_path, ((40,) * 9,))
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agreed", done.stderr
