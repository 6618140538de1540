from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.config import DatasetSettings
from streamrec.errors import FeederLost
from streamrec.feeder.client.client import AsyncFeed, BlockingFeed
from streamrec.feeder.client.shared import create_memory
from streamrec.feeder.server.server import Feeder
from streamrec.wire.messages import BatchMessage, Credit, Fault, Release, Shared, Subscribe, Welcome
from streamrec.wire.protocol import Role
from tests.feeder import fake_dataset
from tests.feeder.client.test_client import all_now, all_of, check, dataset_at, listening
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import (
    Scripted,
    hello,
    on_both_loops,
    served,
    server_settings,
    shared_mappings,
    until,
)
from tests.support import open_fds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamrec.pipeline.batch.batch import Batch


def check_all(batches: list[Batch], size: int) -> None:
    assert batches
    for step, batch in enumerate(batches):
        expected = fake_dataset.batch(step, size=size)
        np.testing.assert_array_equal(batch["values"], expected["values"])


@asynccontextmanager
async def mapped() -> AsyncIterator[Scripted]:
    """Serve a client whose memory is in use; return when the feeder has left it."""
    ours, theirs = socket.socketpair()
    async with Feeder({"train": FakeDataset(hang_at=1)}) as feeder:
        serving = asyncio.create_task(feeder.serve_socket(theirs))
        with ours, create_memory(1 << 20) as memory:
            assert memory is not None
            script = Scripted(ours, Role.CLIENT)
            socket.send_fds(ours, [b"".join(script.machine.send(hello()))], [memory])
            await script.answer()
            script.say(Subscribe(0), Credit(1 << 20))
            assert isinstance((await script.answer())[-1], Shared)
            yield script
        await serving


class TestClients:
    @on_both_loops
    async def test_several_clients_at_once(self, tmp_path: Path) -> None:
        before = shared_mappings()
        async with Feeder({"train": FakeDataset(size=5000)}) as feeder:
            address = dataset_at(str(await feeder.listen(listening("unix", tmp_path))))
            feeds = [await AsyncFeed.open(address) for _ in range(4)]
            assert len(shared_mappings() - before) == 8, "on both sides"
            found = await asyncio.gather(*map(all_of, feeds))
            for batches in found:
                check_all(batches, size=5000)
            del found, batches
            await asyncio.sleep(0)  # until then the loop still holds what it has waited for
            gc.collect()
            assert feeds[0].inbox is not None
            assert feeds[0].inbox.take_freed(), "they came in it"
            for feed in feeds:
                await feed.aclose()
        assert shared_mappings() <= before

    def test_without_a_loop(self, tmp_path: Path) -> None:
        before = shared_mappings()
        with served({"train": FakeDataset()}) as feeder:
            address = dataset_at(feeder.listen(listening("unix", tmp_path)))
            with closing(BlockingFeed.open(address)) as feed:
                assert len(shared_mappings() - before) == 2
                for step in range(10):
                    check(feed.receive(), step)
                assert feed.inbox is not None
                assert len(feed.inbox.take_freed()) == 10
        assert shared_mappings() <= before

    def test_what_is_kept_stays_as_it_is(self, tmp_path: Path) -> None:
        before = shared_mappings()
        with served({"train": FakeDataset(steps=100, size=1000)}) as feeder:
            address = dataset_at(feeder.listen(listening("unix", tmp_path)))
            # Room for five batches: the others come over the socket.
            feed = BlockingFeed.open(address, shared_bytes=200_000, credit_bytes=1 << 16)
            kept = all_now(feed)
            feed.close()
        assert len(shared_mappings() - before) == 1, "the feeder's is gone"
        check_all(kept, size=1000)
        del kept
        assert shared_mappings() <= before

    @pytest.mark.parametrize(("kind", "options"), [("tcp", {}), ("unix", {"shared_bytes": 0})])
    def test_none(self, kind: str, options: dict[str, Any], tmp_path: Path) -> None:
        before = shared_mappings()
        with served({"train": FakeDataset()}) as feeder:
            address = dataset_at(feeder.listen(listening(kind, tmp_path)))
            with closing(BlockingFeed.open(address, **options)) as feed:
                assert shared_mappings() <= before
                check(feed.receive(), 0)

    def test_a_feeder_that_takes_none(self, tmp_path: Path) -> None:
        settings = server_settings(shared_memory=0)
        with served({"train": FakeDataset()}, settings=settings) as feeder:
            address = dataset_at(feeder.listen(listening("unix", tmp_path)))
            with closing(BlockingFeed.open(address)) as feed:
                for step, batch in enumerate(all_now(feed)):
                    check(batch, step)
                assert feed.inbox is not None
                assert feed.inbox.take_freed() == ()

    def test_the_death_of_a_feeder(self, tmp_path: Path) -> None:
        before, files = shared_mappings(), open_fds()
        with served({"train": FakeDataset(steps=1000)}) as feeder:
            address = dataset_at(feeder.listen(listening("unix", tmp_path)))
            feed = BlockingFeed.open(address, credit_bytes=1 << 16)
            feeder.call(feeder.feeder.aclose())
            with pytest.raises(FeederLost):
                all_now(feed)
        del feed  # its error holds the frames that hold the batches
        gc.collect()
        assert shared_mappings() <= before
        until(lambda: open_fds() <= files)


class TestServer:
    @pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/proc/self/maps"])
    @on_both_loops
    async def test_a_client_that_sends_something_else_is_served_all_the_same(
        self, name: str
    ) -> None:
        ours, theirs = socket.socketpair()
        something = await asyncio.to_thread(Path(name).open, "rb")
        async with Feeder({"train": FakeDataset()}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            with ours, something as file:
                script = Scripted(ours, Role.CLIENT)
                data = b"".join(script.machine.send(hello()))
                socket.send_fds(ours, [data], [file.fileno()] * 100)
                assert isinstance((await script.answer())[0], Welcome)
                script.say(Subscribe(0), Credit(1))
                assert isinstance((await script.answer())[0], BatchMessage)
                later = b"".join(script.machine.send(Credit(1 << 20)))
                socket.send_fds(ours, [later], [file.fileno()])
                assert isinstance((await script.answer())[0], BatchMessage)
            await serving

    @on_both_loops
    async def test_is_unmapped_when_the_client_goes(self) -> None:
        before = shared_mappings()
        async with mapped():
            assert len(shared_mappings() - before) == 1
        assert shared_mappings() <= before

    @on_both_loops
    async def test_is_unmapped_when_the_client_breaks_the_protocol(self) -> None:
        before = shared_mappings()
        async with mapped() as script:
            script.say(Release((0, 0)))
            assert isinstance((await script.answer())[-1], Fault)
        assert shared_mappings() <= before

    @pytest.mark.parametrize(("of", "is_used"), [("ranges", True), ("batches", False)])
    @on_both_loops
    async def test_nothing_is_decoded_there_that_is_kept_for_others(
        self, of: str, is_used: bool, tmp_path: Path
    ) -> None:
        dataset = FakeDataset()
        dataset.settings = DatasetSettings.model_validate(
            {"source": "double", "batch_size": 8, "cache": {"of": of}}
        )
        async with Feeder({"train": dataset}) as feeder:
            address = await feeder.listen(f"unix://{tmp_path}/s")
            async with aclosing(await AsyncFeed.open(f"{address}#train")) as feed:
                await feed.receive()
            assert [allocate is not None for allocate in dataset.allocates] == [is_used]
