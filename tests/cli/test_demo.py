from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrec import demo
from tests.cli.support import assert_one_sentence, environment, in_process, started
from tests.cli.support import streamrec as cli

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

SUMMARY = demo.Summary(
    records=2048,
    bytes=201_500_000,
    epochs=2,
    ranks=2,
    shards=32,
    first_batch_seconds=0.5,
    stream_seconds=2.0,
    megabytes_per_second=100.8,
    records_per_second=1024.0,
    resumed_at_step=20,
    lost=0,
    repeated=0,
    damaged=0,
    seconds=3.5,
    kernel="python",
    version="0.1.0",
)


@contextmanager
def streaming(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a demo and wait for its feeder; its temporary files are in ``tmp_path``."""
    with started("demo", env=environment(TMPDIR=str(tmp_path))) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"started a feeder"):
            pass
        yield process


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return a descriptor for each child, which becomes readable when the child has ended."""
    listing = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [os.pidfd_open(int(pid)) for pid in listing.split()]


def assert_ended(descriptors: list[int]) -> None:
    assert len(descriptors) == 2
    for descriptor in descriptors:
        readable, _, _ = select.select([descriptor], [], [], 30)
        os.close(descriptor)
        assert readable


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the demo by one that ends with the summary in this list."""
    ending: list[Any] = []

    def run(note: Any, progress: Any, *, keep: Path | None) -> demo.Summary:
        assert keep is None
        note("wrote something")
        progress("streaming", 1, 2)
        found: demo.Summary = ending[0]
        return found

    monkeypatch.setattr(demo, "run", run)
    return ending


def test_end_to_end(tmp_path: Path) -> None:
    outcome = in_process("demo", "--json", env=environment(TMPDIR=str(tmp_path)))
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.object
    assert found.keys() == SUMMARY.__dataclass_fields__.keys()
    assert (found["records"], found["epochs"], found["ranks"], found["shards"]) == (2048, 2, 2, 32)
    assert (found["lost"], found["repeated"], found["damaged"]) == (0, 0, 0)
    assert found["bytes"] > 150_000_000
    assert 0 < found["resumed_at_step"] < 32
    assert 0 < found["first_batch_seconds"] < found["stream_seconds"] < found["seconds"]
    assert list(tmp_path.iterdir()) == []


def test_text(summary: list[Any]) -> None:
    summary.append(SUMMARY)
    outcome = cli("demo")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("wrote something\nstreamed 2,048 records, 201.5 MB")
    assert "lost 0, repeated 0, damaged 0: every record arrived exactly once" in outcome.out
    assert "100.8 MB/s, 1,024 records/s" in outcome.out


def test_json_is_alone(summary: list[Any]) -> None:
    summary.append(SUMMARY)
    assert cli("demo", "--json").object["records_per_second"] == 1024.0


@pytest.mark.parametrize("fault", [{"lost": 1}, {"repeated": 1}, {"damaged": 1}])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_fault_is_a_failure(summary: list[Any], fault: dict[str, Any], option: list[str]) -> None:
    summary.append(replace(SUMMARY, **fault))
    assert cli("demo", *option).code == 1


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_one_sentence(cli("demo", "--keep", tmp_path), 2, str(tmp_path), "name a new directory")


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with streaming(tmp_path) as process:
            children = children_of(process)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=100)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (process.returncode, err) == (130, b"")
    assert_ended(children)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    with streaming(tmp_path) as process:
        children = children_of(process)
        process.kill()
        process.communicate(timeout=100)
    assert_ended(children)
