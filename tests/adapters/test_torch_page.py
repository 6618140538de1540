"""The code of the pages about PyTorch and its trainers runs, where they are installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from tests.by_day import at_night
from tests.pages import DOCS, blocks
from tests.test_docs import environment, files, run, runs, transcript

if TYPE_CHECKING:
    from pathlib import Path

PAGES = {"pytorch": "torch", "huggingface": "huggingface", "lightning": "lightning"}
"""The pages, and how their code is marked."""
LIBRARIES = {"huggingface": "transformers"}


@pytest.mark.parametrize("page", ["pytorch", at_night("huggingface"), at_night("lightning")])
def test_the_page_runs(tmp_path: Path, page: str) -> None:
    mark = PAGES[page]
    if find_spec(LIBRARIES.get(mark, mark)) is None:
        pytest.skip(f"{LIBRARIES.get(mark, mark)} is not installed")
    found = blocks(DOCS / "how-to" / f"train-with-{page}.md")
    code = [block.body for block in found if runs(block) or block.info == f"python {mark}"]
    script = tmp_path / "page.py"
    script.write_text("\n".join(code))
    work = tmp_path / "work"
    work.mkdir()
    run([str(script)], work)


@pytest.mark.night
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_program_of_several_ranks_prints_what_is_shown(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "train-with-pytorch.md"
    ((name, body),) = files(page).items()
    (tmp_path / name).write_text(body)
    ((command, shown),) = transcript(page)
    (write,) = [block.body for block in blocks(page) if "ShardedWriter(" in block.body]
    run(["-c", write], tmp_path)
    launcher, *arguments = command.split()
    assert launcher == "torchrun"
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (finished.stdout, finished.returncode) == (shown, 0), finished.stderr


def small_stream(source: str) -> sr.Stream[Any]:
    features = {"x": sr.FixedLenFeature((), "int64")}
    return sr.open(source, features, batch_size=2, shuffle=True, engine="thread")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("is_behind_the_loop", "loops"), [(False, [0, 4, 4]), (True, [4, 4, 4])])
def test_a_resume_at_the_end_of_an_epoch(
    tmp_path: Path, is_behind_the_loop: bool, loops: list[int]
) -> None:
    from streamrec.adapters.torch import as_loader

    source = str(tmp_path / "a.tfrecord")
    with sr.TFRecordWriter(source) as writer:
        writer.write_many({"x": i} for i in range(8))
    with small_stream(source) as stream:
        loader = as_loader(stream)
        state = [loader.state_dict() for _ in loader][-1]
        if is_behind_the_loop:
            state = loader.state_dict()
    with small_stream(source) as stream:
        loader = as_loader(stream)
        loader.load_state_dict(state)
        assert [len(list(loader)) for _ in loops] == loops
