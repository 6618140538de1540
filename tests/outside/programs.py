"""Our own tests, run with programs of others: cjpeg, and servers of S3."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

from tests.outside.result import Result

__all__ = ["samplings", "stores"]


def samplings() -> Result:
    """All samplings that libjpeg's tool writes, decoded as TensorFlow decodes them."""
    result = Result("tests of all samplings that cjpeg writes")
    if shutil.which("cjpeg") is None:
        result.missing = "cjpeg (libjpeg-turbo-progs)"
        return result
    return _by_pytest(result, "tests/formats/test_differential_image.py", "-k", "TestSamplings")


def stores() -> Result:
    """The suite of stores against moto, rclone, and what STREAMREC_TEST_S3_OTHERS names."""
    result = Result("moto, rclone and Swift as stores")
    with ExitStack() as stack:
        named = os.environ.get("STREAMREC_TEST_S3_OTHERS", "")
        servers = list(filter(None, [named, _moto(stack), _rclone(stack)]))
        if not servers:
            result.missing = "moto_server or rclone"
            return result
        return _by_pytest(result, "tests/stores/test_s3_others.py", others=";".join(servers))


def _moto(stack: ExitStack) -> str:
    program = shutil.which("moto_server")
    return _server(stack, "moto", [program, "-H", "127.0.0.1", "-p", "{port}"]) if program else ""


def _rclone(stack: ExitStack) -> str:
    program = shutil.which("rclone")
    if program is None:
        return ""
    place = stack.enter_context(tempfile.TemporaryDirectory())
    more = ["--addr", "127.0.0.1:{port}", "--auth-key", "test,testsecret"]
    more += ["--vfs-cache-mode", "writes", place]
    return _server(stack, "rclone", [program, "serve", "s3", *more])


def _server(stack: ExitStack, name: str, command: list[str]) -> str:
    """Start a server at a free port; return how tests name it, once it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(port=port) for word in command]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return f"{name}=http://127.0.0.1:{port},test,testsecret"
        time.sleep(0.1)
    return ""


def _by_pytest(result: Result, *arguments: str, others: str = "") -> Result:
    """Count what pytest says of tests, each of which is a case."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--hypothesis-profile=night"]
    environment = {**os.environ, "STREAMREC_TEST_S3_OTHERS": others, "CI": ""}
    done = subprocess.run(
        [*command, "--timeout", "3600", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for case, what in re.findall(r"(?m)^(?:FAILED|ERROR) \S+?::(\S+)(.*)", done.stdout):
        result.differing[case] = what.removeprefix(" - ")[:200]
    result.agreeing = sum(map(int, re.findall(r"\b(\d+) passed", done.stdout)))
    if not result.agreeing and not result.differing:
        result.differing["pytest"] = done.stdout[-400:]
    return result
