"""Breaks each check of the repository on purpose, and sees that it is red.

::

    python -m tests.break_checks            # all, some minutes
    python -m tests.break_checks --only docs

A check that cannot fail is a defect. So whoever adds one adds the break that it must notice here.
Nothing is changed in the directory where it is started.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tests.mutate import copy_of_tree

if TYPE_CHECKING:
    from pathlib import Path

PYTEST = "python -m pytest -q -x -p no:cacheprovider "


@dataclass(frozen=True)
class Break:
    """A check, and a change of one file that it must notice."""

    check: str
    """The command."""
    path: str
    before: str
    """The text that is replaced, once; empty: something is added at the end."""
    after: str

    def apply(self, tree: Path) -> None:
        place = tree / self.path
        text = place.read_text()
        assert self.before in text, f"{self.path} has no {self.before!r}: adapt the break"
        changed = text.replace(self.before, self.after, 1) if self.before else text + self.after
        place.write_text(changed)


BREAKS = [
    Break("ruff check .", "streamrec/masking.py", "", "import os\n"),
    Break("ruff format --check .", "streamrec/masking.py", "", "x  = 1\n"),
    Break("mypy streamrec/masking.py", "streamrec/masking.py", "", "x: int = ''\n"),
    Break("mkdocs build --strict --site-dir site", "docs/glossary.md", "", "\n[x](no-page.md)\n"),
    # the layers
    *(
        Break(PYTEST + "tests/test_layers.py", "streamrec/values/record_rows.py", "", line)
        for line in (
            "from streamrec.streams.stream import Stream\n",
            "from streamrec import connect\n",
            "from ..streams import stream\n",
            "import importlib; importlib.import_module('streamrec.streams.stream')\n",
            "import importlib; importlib.import_module(__name__ + 'x')\n",
            "import asyncio\n",
            "import torch\n",
            "import pickle\n",
            "__all__ = ['Chunks']\n",
        )
    ),
    *(
        Break(PYTEST + "tests/test_layers.py", "streamrec/plan/order/window.py", "", line)
        for line in (
            "from streamrec.plan.state.position import Position\n",  # a room on a higher floor
            "from streamrec.plan.order.record_order import RecordOrder\n",  # a circle
        )
    ),
    Break(PYTEST + "tests/test_unique_names.py", "streamrec/masking.py", "", "class Stream: ...\n"),
    Break(PYTEST + "tests/test_errors.py", "streamrec/masking.py", "", "'it is no text'\n"),
    Break(PYTEST + "tests/test_dependencies.py", "streamrec/masking.py", "", "import boto3\n"),
    Break(PYTEST + "tests/test_dependencies.py", "pyproject.toml", '"aiohttp', '"httpx", "aiohttp'),
    Break(PYTEST + "tests/test_init.py", "streamrec/__init__.py", "merge_shards", "none_such"),
    # calls that block an event loop, and settings that change a batch
    Break(
        PYTEST + "tests/pipeline/test_leaving.py -k plain",
        "streamrec/pipeline/run.py",
        "await end_threads(self._threads, *then)",
        "self._threads.shutdown(wait=True)",
    ),
    Break(
        PYTEST + "tests/feeder/test_other_settings.py -k on_corrupt",
        "streamrec/feeder/client/welcome.py",
        '"on_corrupt")',
        ")",
    ),
    Break(
        PYTEST + "tests/feeder/test_other_settings.py -k code",
        "streamrec/feeder/client/welcome.py",
        " | dict(codes or {})",
        "",
    ),
    # files that come from outside
    Break(
        PYTEST + "tests/test_hostile_files.py -k manifest",
        "streamrec/datasets/dataset_manifest.py",
        "if parts != totals:",
        "if False:",
    ),
    Break(
        PYTEST + "tests/test_hostile_files.py -k index",
        "streamrec/formats/shards/index.py",
        "and (np.diff(firsts) > 0).all()",
        "",
    ),
    # the pages
    Break(PYTEST + "tests/test_docs.py -k link", "docs/glossary.md", "", "\n[x](no-page.md)\n"),
    Break(
        PYTEST + "tests/test_docs.py -k link", "docs/glossary.md", "", "\n[x][y]\n\n[y]: no.md\n"
    ),
    Break(
        PYTEST + "tests/test_docs.py -k setting", "docs/reference/settings.md", "`lanes`", "`lane`"
    ),
    Break(
        PYTEST + "tests/test_docs.py -k error",
        "docs/reference/errors.md",
        "| `Stalled`",
        "| `Stal`",
    ),
    Break(
        PYTEST + "tests/test_docs.py -k 'python and dataset-index'",
        "docs/reference/dataset-index.md",
        "1,000 records",
        "1,001 records",
    ),
    Break(
        PYTEST + "tests/test_docs.py -k 'prints and first-job'",
        "docs/tutorials/first-job.md",
        "cat ",
        "info ",
    ),
    Break(
        PYTEST + "tests/test_docs_unrun.py",
        "docs/glossary.md",
        "",
        "\n```python no-run\nsr.opn('x')\n```\n",
    ),
    Break(
        PYTEST + "tests/test_docs_unrun.py",
        "docs/glossary.md",
        "",
        "\n```sh\nstreamrec cat x --frist 3\n```\n",
    ),
    Break(
        PYTEST + "tests/test_from_tensorflow.py -k row",
        "docs/how-to/from-tensorflow.md",
        "`sr.take(sr.open(files, features), 3)`",
        "`sr.take(sr.open(files, features), 4)`",
    ),
    # what was measured
    Break(PYTEST + "tests/bench/test_publish.py", "bench/results/kernel.json", "1", "2"),
    Break(PYTEST + "tests/bench/test_publish.py", "bench/results/sweep.md", "1", "2"),
    Break(
        PYTEST + "tests/bench/test_publish.py",
        "README.md",
        "<!-- table: how_fast -->",
        "<!-- x -->",
    ),
    # what is claimed
    Break(
        PYTEST + "tests/test_comparison.py",
        "docs/explanation/compare.md",
        "::test_no_rank_waits_for_ever",
        "::test_no_rank_waits",
    ),
    Break(
        PYTEST + "tests/test_promises.py -k check_crc",
        "docs/reference/promises.md",
        "lost: a damaged record is delivered",
        "kept: a damaged record is delivered",
    ),
    Break(PYTEST + "tests/test_site.py", "docs/install.md", "| `otel` |", "| `hotel` |"),
    # what a release is made of
    Break(
        PYTEST + "tests/test_frozen.py",
        "streamrec/wire/protocol.py",
        "PROTOCOL_VERSIONS = (3,)",
        "PROTOCOL_VERSIONS = (3, 4)",
    ),
    Break(
        PYTEST + "tests/test_packaging.py",
        "deploy/kubernetes/base/kustomization.yaml",
        "newTag: 0.1.0",
        "newTag: 0.0.9",
    ),
    Break(PYTEST + "tests/test_project_files.py", "CITATION.cff", "type: software", "type: book"),
    Break(
        PYTEST + "tests/test_workflows.py",
        ".github/workflows/release.yml",
        "persist-credentials: false",
        "persist-credentials: true",
    ),
    Break(PYTEST + "tests/test_justfile.py", "justfile", "-m tests.fast", "-m tests.quick"),
    # what others read
    Break(PYTEST + "tests/deploy/test_dockerfile.py", "Dockerfile", "", "RUN sudo ls\n"),
    Break(PYTEST + "tests/deploy/test_compose.py", "docker-compose.yml", "services:", "servces:"),
    Break(
        PYTEST + "tests/deploy/test_kubernetes.py",
        "deploy/kubernetes/base/deployment.yaml",
        "replicas:",
        "replcas:",
    ),
    Break(
        PYTEST + "tests/deploy/test_helm.py",
        "deploy/helm/streamrec/templates/deployment.yaml",
        "path: /readyz",
        "path: /livez",
    ),
    Break(
        PYTEST + "tests/deploy/test_jobs.py",
        "deploy/kubernetes/jobs/jobset.yaml",
        "dependsOn:",
        "dependOn:",
    ),
    Break(
        PYTEST + "tests/deploy/test_prometheus.py",
        "deploy/prometheus/rules.yml",
        "expr: ",
        "expr: (",
    ),
    Break(
        PYTEST + "tests/deploy/test_systemd.py",
        "deploy/systemd/streamrec.service",
        "[Service]",
        "[S]",
    ),
    Break(
        PYTEST + "tests/deploy/test_configurations.py", "deploy/feeder.toml", "[server]", "[serve]"
    ),
    Break(
        PYTEST + "tests/streams/test_typing.py",
        "streamrec/streams/stream.py",
        "-> Take",
        "-> int | Take",
    ),
    # what stores promise
    Break(
        PYTEST + "tests/stores/test_gcs_emulator.py",
        "streamrec/stores/gcs/gcs_store.py",
        "    def list(",
        "    def list_not(",
    ),
    # the kernel's twin, and the tests' own means
    Break(
        PYTEST + "tests/kernel", "streamrec/kernel/reference/frames.py", "return", "return None and"
    ),
    Break(PYTEST + "tests/test_skips.py", "tests/skips.py", "is_known(reason)", "True"),
    Break(PYTEST + "tests/test_conftest.py", "tests/conftest.py", "(BaseException)", "(Exception)"),
]


def is_red(broken: Break) -> bool:
    """Return whether a check fails in a copy of the tree that is broken."""
    with tempfile.TemporaryDirectory() as place:
        tree = copy_of_tree(place)
        broken.apply(tree)
        words = shlex.split(broken.check)
        command = [sys.executable, *words[1:]] if words[0] == "python" else words
        environment = {**os.environ, "PYTHONPATH": str(tree), "CI": "true"}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    # pytest's 5: no test ran, so none has failed.
    return done.returncode not in (0, 5)


@click.command()
@click.option("--only", default="", help="Only checks whose command or file has this text.")
def main(only: str) -> None:
    """Break each check, and name those that stay green."""
    chosen = [one for one in BREAKS if only in f"{one.check} {one.path}"]
    green = []
    for number, broken in enumerate(chosen, 1):
        red = is_red(broken)
        click.echo(
            f"{number}/{len(chosen)} {'red' if red else 'GREEN'}: {broken.check}: {broken.path}"
        )
        green += [] if red else [broken]
    sys.exit(bool(green))


if __name__ == "__main__":
    main()
