from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamrec.errors import StoreUnavailable
from streamrec.feeder.server.server import Feeder
from tests.feeder.fake_dataset import FakeDataset
from tests.support import asynchronous


@asynchronous
async def test_the_state_of_each_dataset() -> None:
    loop = asyncio.get_running_loop()
    opening, failed, broken, opened = (loop.create_future() for _ in range(4))
    failed.set_exception(StoreUnavailable("the store is down"))
    broken.set_exception(RuntimeError("token=secret"))
    opened.set_result(FakeDataset())
    datasets: dict[str, Any] = {
        "a": opening,
        "b": failed,
        "c": broken,
        "d": opened,
        "e": FakeDataset(),
    }
    shown = Feeder(datasets).snapshot()["datasets"]
    assert {name: one["state"] for name, one in shown.items()} == {
        "a": "opening",
        "b": "failed",
        "c": "failed",
        "d": "open",
        "e": "open",
    }
    assert "the store is down" in shown["b"]["problem"]
    assert shown["c"]["problem"] == "RuntimeError"
    opening.cancel()


@pytest.mark.both_kernels
def test_build() -> None:
    build = Feeder({}).snapshot()["build"]
    assert build.keys() == {"version", "kernel", "protocol", "python"}
    assert build["kernel"] in ("native", "python")
