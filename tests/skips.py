"""Tests that are skipped where all that they need was to be there.

A test that is skipped everywhere holds nothing. With ``STREAMREC_TEST_SKIPS=known``, as in
``.ci/run``, a run fails if it skips a test for a reason that is not in :data:`KNOWN`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOWN = {
    "there is no CUDA device": "no machine of the automatic runs has one",
    "Ray is not installed": "by night, in an environment of its own",
    "(apache_beam|pyspark|ray) is not installed": "by night, in the same environment",
    "(energon|megatron-core|torchtitan) is not installed": "by night, in an environment of its own",
    "(mlflow|wandb) is not installed": "by hand, in an environment of their own: they are large",
    "ml_dtypes is installed": "the other case is tested where it is not",
    "zlib-ng compresses in its own way": "the other zlib is tested where it is",
    "it has memory of its own": "the kernel in Python has no such memory",
    "no C compiler is here": "by night",
    "this is not a checkout of git": "an sdist is compared with git's files where they are made",
    "actionlint is not installed": "its package fetches the program from elsewhere; by hand",
    "(fish|zsh) is not installed": "bash stands for the shells",
    "could not import 'dlio_benchmark'.*": "its versions of packages are others; see bench/dlio",
    "zeros may follow": "the case does not apply to gzip and zlib",
    "STREAMREC_TEST_S3_OTHERS is not set": "by hand, for servers that somebody names",
    "this backend has int64": "the case is that of the other backends",
    "TensorFlow has (ragged tensors|tensors of strings)": "the case is that of the others",
}
"""The patterns of the reasons for which a test may be skipped, and why that is no loss."""

ENDS_WELL = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def is_known(reason: str) -> bool:
    text = reason.removeprefix("Skipped: ")
    return any(re.fullmatch(pattern, text) for pattern in KNOWN)


class Skips:
    """A plugin that fails a run for skips whose reason is not known."""

    def __init__(self) -> None:
        self._is_strict = os.environ.get("STREAMREC_TEST_SKIPS") == "known"
        self._unknown: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self._is_strict and report.skipped and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2])
            if not is_known(reason):
                self._unknown[report.nodeid] = reason

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        if self._unknown and session.exitstatus in ENDS_WELL:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._unknown:
            terminalreporter.section("skipped for a reason that tests/skips.py does not know")
            for test, reason in sorted(self._unknown.items()):
                terminalreporter.write_line(f"{test}: {reason}")
