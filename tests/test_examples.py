"""The examples run, learn, and go on in the middle of an epoch with the same batches.

They are run as their users run them: programs of their own, and shards in an object store.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings
from streamrec.devstore import DevStore
from tests.by_day import at_night
from tests.feeder.shards import write_shards
from tests.feeder.support import serving
from tests.test_docs import run

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
PATIENCE = 100
"""Seconds for a program, on a loaded machine."""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(FOLDER.parent),
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testsecret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "OMP_NUM_THREADS": "1",  # torch's threads wait actively, on cores that others need
}
COMPILED_ONCE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
STEPS, STOP, CHECKPOINT = 40, 25, 20


class Example(NamedTuple):
    """An example that trains."""

    name: str
    shards: str
    """The records that it reads, as write_shards.py names them."""
    libraries: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    """What starts it besides Python."""
    stop: str = "--stop-at"
    ranks: int = 1
    tells_rounds: bool = False
    """True if it tells of checkpoints alone; then only a run that is not stopped tells the same."""


TRAINING = [
    at_night(Example("images_torch", "photos", ("torch",))),
    at_night(Example("language_model_jax", "text", ("jax", "orbax.checkpoint"))),
    at_night(Example("feeder_trainers", "photos", ranks=2)),
    at_night(Example("images_keras", "photos", ("keras", "jax"), tells_rounds=True)),
    at_night(Example("rnn_torch", "lines", ("torch",))),
    at_night(
        Example(
            "ddp_torch",
            "photos",
            ("torch",),
            ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            stop="--kill-at",
            ranks=2,
        )
    ),
    at_night(
        Example(
            "fsdp_torch",
            "photos",
            ("torch",),
            ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            stop="--kill-at",
            ranks=2,
        )
    ),
]
"""By day PyTorch's; the adapters' and the feeder's own tests hold the other ways."""


def is_there(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # a package of the library
        return False


class Bucket:
    """A bucket of the shards that examples read, each kind of which is written once."""

    def __init__(self, store: DevStore, compiled: Path) -> None:
        # A program that resumes takes from there what the first one compiled.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(compiled), **COMPILED_ONCE}
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": store.endpoint, **cache}
        self.options = store.storage_options
        self._written: set[str] = set()

    def source(self, shards: str) -> str:
        """Return the URL of a kind of shards."""
        if shards not in self._written:
            command = [sys.executable, "-W", "error", str(FOLDER / "write_shards.py"), shards]
            subprocess.run([*command, f"s3://examples/{shards}"], env=self.environment, check=True)
            self._written.add(shards)
        return f"s3://examples/{shards}-*.tfrecord"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with DevStore() as store:
        yield Bucket(store, tmp_path_factory.mktemp("compiled"))


class Training:
    """A run of an example; it goes on from the checkpoint of that name, if there is one."""

    def __init__(self, example: Example, bucket: Bucket, checkpoint: Path, *extra: str) -> None:
        self.history = checkpoint.with_name(f"{checkpoint.name}{len(extra)}.history")
        self.example = example
        self.source = bucket.source(example.shards)
        command = [sys.executable, *example.launcher, str(FOLDER / f"{example.name}.py")]
        options = [f"--checkpoint={checkpoint}", f"--steps={STEPS}", f"--history={self.history}"]
        self._process = subprocess.Popen(
            [*command, self.source, *options, *extra],
            env=bucket.environment,
            cwd=checkpoint.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.terminate()  # it has ended, unless the test failed

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, and what was written to stdout and stderr."""
        printed, said = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, printed, said

    def lines(self) -> list[list[dict[str, Any]]]:
        """Return what each rank wrote after its steps."""
        ranks = range(self.example.ranks)
        files = [self.history.with_suffix(f".rank{rank}") for rank in ranks]
        files = [self.history] if self.example.ranks == 1 else files
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def assert_same(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Hold that steps had the same records in the same order, and so the same loss."""
    assert [records_of(line) for line in some] == [records_of(line) for line in others]
    assert [a["loss"] for a in some] == pytest.approx([b["loss"] for b in others], rel=1e-3)


def records_of(line: dict[str, Any]) -> tuple[int, Any]:
    """Return a step's number, and its records; of Keras those of the batch that comes next."""
    return line["step"], line.get("records") or line["coming"]


@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize("example", TRAINING, ids=lambda example: example.name)
def test_an_example_learns_and_resumes_to_the_same_batches(
    example: Example, bucket: Bucket, tmp_path: Path
) -> None:
    for library in example.libraries:
        if not is_there(library):
            pytest.skip(f"{library} is not installed")
    checkpoint = tmp_path / "checkpoint"
    with Training(example, bucket, checkpoint, f"{example.stop}={STOP}") as stopped:
        code, _, said = stopped.ended()
        assert code != 0
        assert "stopped at step" in said or "Signal 9 (SIGKILL)" in said, said
    with Training(example, bucket, checkpoint) as resumed:
        code, printed, said = resumed.ended()
        assert code == 0, said
        assert re.findall(r"step (\d+)\b.*: loss", printed)[-1] == str(STEPS)

    others = stopped
    if example.tells_rounds:
        with Training(example, bucket, tmp_path / "whole") as others:
            code, _, said = others.ended()
            assert code == 0, said

    for first, rest, other in zip(stopped.lines(), resumed.lines(), others.lines(), strict=True):
        again = [line for line in other if line["step"] > CHECKPOINT]
        assert again
        assert_same(again, rest[: len(again)])
        assert rest[-1]["step"] == STEPS
        losses = [line["loss"] for line in first if line["step"] <= CHECKPOINT]
        losses += [line["loss"] for line in rest]
        tenth = len(losses) // 10 or 1
        assert mean(losses[-3 * tenth :]) < 0.85 * mean(losses[:tenth])


@pytest.mark.parametrize("name", [at_night("elastic.py"), "feeder_client.py"])
def test_an_example_that_needs_nothing_runs(name: str, tmp_path: Path) -> None:
    printed = run([str(FOLDER / name)], tmp_path)
    assert len(printed.splitlines()) > 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("episodes_rlds", "PIL"),
        at_night("regression_lightning", "lightning"),
        at_night("tokens_torchtitan", "torchtitan"),
    ],
)
@pytest.mark.timeout(PATIENCE)
def test_a_small_example_resumes_to_the_same_batches(
    name: str, library: str, tmp_path: Path
) -> None:
    if not is_there(library):
        pytest.skip(f"{library} is not installed")
    theirs = ["-W", "ignore::DeprecationWarning"]  # of what the libraries import
    path = os.pathsep.join(filter(None, sys.path))  # where `is_there` looks
    printed = run([*theirs, str(FOLDER / f"{name}.py")], tmp_path, PYTHONPATH=path)
    loss, same = printed.splitlines()
    first, last = map(float, re.findall(r"\d\.\d+", loss))
    assert last < 0.85 * first
    assert re.fullmatch(r"stopped after step \d+ and resumed: the same \w+ and losses", same)


def test_the_repository_has_enough_lines_of_each_language() -> None:
    example = runpy.run_path(str(FOLDER / "write_shards.py"))
    languages = len(example["LANGUAGES"])
    assert sum(1 for _ in example["lines"]()) == languages * example["LINES"]


def test_the_bucket_s_example_runs(bucket: Bucket, tmp_path: Path) -> None:
    endpoint = bucket.options["endpoint_url"]
    where = ["--endpoint-url", endpoint, "s3://train/numbers"]
    keys = {name: text for name, text in ENVIRONMENT.items() if name.startswith("AWS_")}
    printed = run([str(FOLDER / "fill_bucket.py"), *where], tmp_path, **keys)
    source = "s3://train/numbers-*.tfrecord"
    with sr.open(source, engine="thread", storage_options=bucket.options) as stream:
        assert sum(1 for _ in stream) == 1024
    assert printed.count("wrote s3://train/numbers-") == 4


def test_the_rate_s_example_runs(tmp_path: Path) -> None:
    source = write_shards(tmp_path, shards=2, records=20)
    with serving(DatasetSettings(source=source, batch_size=8)) as address:
        command = [str(FOLDER / "print_rate.py"), f"{address}/data", "--steps", "3"]
        printed = run(command, tmp_path)
    rate = r"step 3: [\d,]+ batches/s, [\d,]+ records/s, waited \d+% of the time\n"
    assert re.fullmatch(rate, printed)


@pytest.mark.parametrize("tracker", ["json", "tensorboard", "wandb", at_night("mlflow")])
def test_the_trackers_example_reports(tracker: str, tmp_path: Path) -> None:
    if tracker != "json" and not is_there(tracker):
        pytest.skip(f"{tracker} is not installed")
    theirs = ["-W", "ignore::DeprecationWarning"]  # of what the trackers import
    command = [*theirs, str(FOLDER / "trackers.py"), tracker, str(tmp_path / "out")]
    # TensorBoard imports TensorFlow where it is, for some seconds, and does without it elsewhere.
    (tmp_path / "tensorflow.py").write_text("raise ImportError")
    printed = run(command, tmp_path, PYTHONPATH=f"{FOLDER.parent}:{tmp_path}")
    assert printed == f"reported to {tracker} up to step 100\n"
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert b"records_per_second" in written


@pytest.mark.parametrize("name", ["fill_bucket", "print_rate", "write_shards", "feeder_trainers"])
def test_an_example_says_how_it_is_used(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert shown.stdout.lower().startswith("usage")


def test_every_example_is_listed() -> None:
    listed = re.findall(r"\]\((\w+\.py)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == EXAMPLES
