"""A dataset of the feeder as one client reads it: a source of runs, or of a part in a reading."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError
from streamrec.feeder.client.welcome import facts_of, mapping_of
from streamrec.feeder.server.replicas import ReplicaReader
from streamrec.masking import masked
from streamrec.plan.state.resume_point import read_resume_point

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from streamrec.feeder.access.tokens import Grant
    from streamrec.feeder.client.shared import Outbox
    from streamrec.feeder.server.conversation import Batches
    from streamrec.feeder.server.replicas import Replica
    from streamrec.feeder.server.service import Service
    from streamrec.feeder.server.statistics import SessionLog, Subscription
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.served import Served, ServedRun
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.wire.messages import Hello, Subscribe

MOST_NAMES = 1 << 20
"""Bytes of shard URLs that WELCOME may carry; their number is always there."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client, as far as the source of its batches must know it."""

    hello: Hello
    peer: str | None
    """The address of its machine; ``None``: it is this one."""
    outbox: Outbox | None
    """The outbox in memory that it has brought, if it did."""
    session_log: SessionLog


class DatasetSource:
    """The source of one client's batches; made by :meth:`open`."""

    def __init__(
        self, *, service: Service, client: Client, dataset: Served, opened_in: float
    ) -> None:
        self.name = client.hello.dataset
        self.subscription: Subscription | None = None
        """The client's subscription, from SUBSCRIBE on."""
        self._service = service
        self._client = client
        self._dataset = dataset
        self._world_size = client.hello.world_size
        self._batch_size = client.hello.batch_size or dataset.settings.batch_size
        self._start: Callable[[ResumePoint | None], ServedRun]
        self._opened_in = opened_in
        """Seconds for which the first run waited until its dataset was open."""

    @classmethod
    async def open(cls, service: Service, client: Client, grant: Grant) -> Self:
        """Wait for the dataset that a client names, and return it as a source.

        Raises:
            FeederRefused: There is no dataset of this name.
            ConfigError: The client names a world size without ranks.
            StreamrecError: The dataset cannot be opened.
        """
        clock = asyncio.get_running_loop().time
        arrived = clock()
        dataset = await service.dataset(client.hello.dataset, grant)
        opened_in = clock() - arrived
        self = cls(service=service, client=client, dataset=dataset, opened_in=opened_in)
        service.statistics.count_opening(self.name, opened_in)
        return self

    async def describe(self) -> None:
        """Find what WELCOME says of the dataset.

        Raises:
            ConfigError: The client names a world size without ranks.
        """
        dataset, batch_size, world_size = self._dataset, self._batch_size, self._world_size
        if not world_size:
            raise ConfigError("world_size must be 1 or more, not 0")
        codes = {} if self._service.codes is None else await self._service.codes.of(dataset)
        facts = facts_of(dataset, names_told(dataset), batch_size, world_size, codes)
        self.facts = json.dumps(facts).encode()
        fingerprint = dataset.fingerprint(batch_size, world_size)
        self.fingerprint = json.dumps(fingerprint.to_dict()).encode()

    @asynccontextmanager
    async def subscribe(self, rank: int) -> AsyncIterator[None]:
        """Count a subscription, and lend it memory, while the block runs."""
        subscribed = self._service.statistics.subscribe(
            self.name,
            rank=rank,
            world_size=self._world_size,
            batch_size=self._batch_size,
            peer=self._client.peer,
        )
        with subscribed as self.subscription:
            if self._client.hello.replicas:
                # The reading that replicas share has memory of its own.
                self._start = self._replica(rank)
                yield
                return
            async with self._service.memory(self._dataset, self._world_size) as loan:
                run = partial(
                    self._dataset.run,
                    rank=rank,
                    world_size=self._world_size,
                    batch_size=self._batch_size,
                    allocate=self._allocate(),
                    budget=loan.budget,
                    ceiling=loan.ceiling,
                )
                self._start = lambda position: run(position=position)
                yield

    def run(self, subscribe: Subscribe) -> AbstractAsyncContextManager[ServedRun]:
        """Return the run that begins where a client says.

        Raises:
            StateError: That is not a position of this stream.
        """
        return self._count_run(self._start(_position(subscribe)))

    def counters(self, batches: Batches) -> dict[str, Any]:
        """Return the counters of a run, with the time until the dataset was open."""
        counters = batches.statistics()
        if self._opened_in and "waits" in counters:
            counters["waits"]["list"] = self._opened_in
        return counters

    def count(self, batch: Batch, size: int) -> None:
        """Count a batch that was sent, in a frame of so many bytes."""
        assert self.subscription is not None
        step = batch.next_position.step
        self._service.statistics.count_batch(self.subscription, step, len(batch), size)
        self._client.session_log.count(size)

    @asynccontextmanager
    async def _count_run(self, run: ServedRun) -> AsyncIterator[ServedRun]:
        assert self.subscription is not None
        async with run:
            self._client.session_log.subscribe(self.subscription.rank, run.position.step)
            self.subscription.begin(run)
            try:
                yield run
            finally:
                self._opened_in = 0.0
                self.subscription.finish()

    def _replica(self, rank: int) -> Callable[[ResumePoint | None], Replica]:
        reader = ReplicaReader(
            name=self.name,
            dataset=self._dataset,
            rank=rank,
            world_size=self._world_size,
            batch_size=self._batch_size,
        )
        return partial(self._service.readings.replica, reader)

    def _allocate(self) -> Allocate | None:
        """Return the source of memory for large columns; ``None``: the run's own."""
        # A client may write to what it shares, at any time: nothing of it must come to a cache.
        cache, outbox = self._dataset.settings.cache, self._client.outbox
        keeps_decoded = cache is not None and cache.of != "ranges"
        return None if outbox is None or keeps_decoded else outbox.allocate


def _position(subscribe: Subscribe) -> ResumePoint | None:
    if not subscribe.position:
        return None
    return read_resume_point(mapping_of(subscribe.position, "the position of SUBSCRIBE"))


def names_told(dataset: Served) -> list[str] | None:
    """Return the shards' URLs for WELCOME; ``None``: they are too many to be told."""
    room = MOST_NAMES
    for url in dataset.shards:
        room -= len(url) + 4
        if room < 0:  # without a look at the others, which may be a million
            return None
    return [masked(url) for url in dataset.shards]
