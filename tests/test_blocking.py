from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import BlockingError

from streamrec.flow.cores import share_work
from tests.blocking import ALLOWED
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]


def join() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, args=[20])
    thread.start()
    try:
        thread.join()
    finally:
        gate.set()


def shut_down() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()


def wait_for_a_result() -> None:
    gate = threading.Event()
    with_one = ThreadPoolExecutor(1)
    result = with_one.submit(gate.wait, 20)
    try:
        result.result()
    finally:
        gate.set()
        with_one.shutdown(wait=False)


BLOCKING: list[Callable[[], Any]] = [
    join,
    shut_down,
    wait_for_a_result,
    lambda: time.sleep(0.001),
    lambda: socket.getaddrinfo("127.0.0.1", 80),
    lambda: Path(__file__).stat(),
    lambda: Path(__file__).read_bytes(),
    lambda: list(ROOT.iterdir()),
    lambda: os.scandir(ROOT).close(),
    lambda: os.close(os.open(ROOT, os.O_RDONLY)),
    lambda: Path(__file__).rename(__file__),
    lambda: Path("there is no such file").unlink(missing_ok=True),
    lambda: ROOT.mkdir(exist_ok=True),
]


def called(function: Callable[[], Any]) -> None:
    """Call a function from one of the package."""
    share_work(ThreadPoolExecutor(1), 0, lambda _: function(), 1)


@pytest.mark.parametrize("function", BLOCKING, ids=range(len(BLOCKING)))
@asynchronous
async def test_a_call_that_blocks_is_refused_in_a_loop(function: Callable[[], Any]) -> None:
    with pytest.raises(BlockingError):
        called(function)


@pytest.mark.parametrize("function", BLOCKING[3:], ids=range(len(BLOCKING[3:])))
@asynchronous
async def test_the_same_call_is_free_in_a_thread(function: Callable[[], Any]) -> None:
    await asyncio.to_thread(called, function)


def test_the_exceptions_are_still_there() -> None:
    for file, name in ALLOWED:
        if file.startswith("streamrec/"):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
