from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from streamrec.flow.channel import EndOfStream
from streamrec.measure.trainer import Trainer
from tests.support import asynchronous

TOLD: dict[str, Any] = {"waits": {"body": 1.0}, "bytes_used": 30, "bytes_read": 40, "requests": 3}


@asynchronous
async def test_it_takes_all_batches_and_keeps_the_account() -> None:
    batches: deque[Any] = deque([b"123", b"4567"])
    samples: list[Any] = []

    async def receive() -> Any:
        if not batches:
            raise EndOfStream
        return batches.popleft()

    trainer = Trainer(0.0, samples.append, lambda: TOLD)
    await trainer.take_all(receive)
    job = trainer.job("stream")
    assert (job.batches, job.records, job.bytes, job.bytes_read, job.requests) == (2, 7, 30, 40, 3)
    assert (job.waits, job.hedges, job.concurrency) == (TOLD["waits"], 0, None)
    assert [(sample.bytes, sample.records) for sample in samples] == [(30, 7)]
    assert job.seconds == trainer.seconds, "the clock stands still at the end"
    assert 0 <= job.stalled <= 1


@asynchronous
async def test_an_error_closes_the_account_too() -> None:
    async def receive() -> Any:
        raise RuntimeError("broken")

    trainer = Trainer(None, lambda _: None, lambda: TOLD)
    with pytest.raises(RuntimeError):
        await trainer.take_all(receive)
    job = trainer.job("interrupt")
    assert job.first_batch_seconds == job.seconds == trainer.waited
    assert (job.batches, job.stalled) == (0, 0.0)
