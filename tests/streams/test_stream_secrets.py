"""Credentials, which a stream and the command line never show in any form."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.config.daemon import DaemonSettings
from streamrec.datasets.survey import Selection
from streamrec.datasets.verify import ShardReport
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import StreamrecError
from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.operate.configuration import effective
from streamrec.flow.retry import Backoff
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.batch.functions import Function
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.lane.damage_policy import CorruptionLog
from streamrec.pipeline.lane.stages import Filter
from streamrec.plan.state.fingerprint import names_digest
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.http.http_ranges import RangedGet
from streamrec.stores.http.transport import Transport
from streamrec.streams import handle
from streamrec.wire.messages import Hello
from tests.by_day import pairwise
from tests.cli.support import storage_options, streamrec
from tests.feeder.support import served, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "swordfish"
SIGNED = f"?X-Amz-Signature={SECRET}-1&sig={SECRET}-2&x={SECRET}-3"
RECORDS = [b"record %d" % n for n in range(20)]
SHARD = b"".join(map(frame, RECORDS))
NAMES = ("a", "b")
FORMS = ["http", "s3", "gs"]


@pytest.fixture(scope="module")
def store() -> Iterator[DevStore]:
    keys, token = {f"{SECRET}-key": f"{SECRET}-secret"}, f"{SECRET}-token"
    with DevStore(anonymous=True, keys=keys, token=token) as running:
        for name in NAMES:
            running.put(f"data/{name}.tfrecord", SHARD)
        running.put("data/damaged.tfrecord", SHARD[:-20] + b"x" + SHARD[-19:])
        running.put("data/cut.tfrecord", SHARD[:-5])
        running.put("data/index", b"no index at all")
        yield running


class Form:
    """A way to name objects of the store, and to come in."""

    def __init__(self, store: DevStore, kind: str) -> None:
        self._kind, self._endpoint = kind, store.endpoint
        self.options = {"s3": store.storage_options, "gs": store.gcs_options, "http": {}}[kind]

    def url(self, name: str) -> str:
        if self._kind == "http":
            return f"{self._endpoint}/data/{name}{SIGNED}"
        return f"{self._kind}://data/{name}"

    @property
    def shards(self) -> list[str]:
        return [self.url(f"{name}.tfrecord") for name in NAMES]

    def settings(self, **more: Any) -> dict[str, Any]:
        options = {"storage_options": self.options} if self.options else {}
        return {"batch_size": 4, "memory_budget": "8MiB", **options, **more}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, store: DevStore) -> Form:
    return Form(store, request.param)


@pytest.fixture
def seen(caplog: pytest.LogCaptureFixture) -> Iterator[list[Any]]:
    """Search in the end all that is put into this list, and all that was logged."""
    found: list[Any] = []
    with caplog.at_level(logging.DEBUG, "streamrec"):
        yield found
    texts = [text for one in found for text in (repr(one), str(one))]
    assert found
    assert [text for text in [*texts, caplog.text] if SECRET in text] == []


def told_by(stream: sr.Stream) -> list[Any]:
    """All that an open stream says of itself."""
    facts = [stream, stream._description, stream._session, stream.shards, stream.fingerprint]
    state = stream.state_dict(), stream.statistics(), stream.fingerprint.to_dict()
    return [*facts, *state, handle.of(stream).summary(), stream.__getstate__()]


def said_by(error: BaseException) -> list[Any]:
    """All that an error says, with its causes."""
    fields = error.fields() if isinstance(error, StreamrecError) else {}
    return [error, error.args, fields, "".join(traceback.format_exception(error))]


@pytest.mark.parametrize("engine", ["thread", "process", None])
def test_a_stream(form: Form, engine: Any, seen: list[Any]) -> None:
    stream = sr.open(form.shards, **form.settings(engine=engine))
    again = pickle.loads(pickle.dumps(stream))
    seen += [stream, again]
    with again:
        taken = [record for batch in again for record in batch.records.to_list()]
        seen += told_by(again)
        assert again.shards[0].startswith(form.url("a.tfrecord").partition("?")[0])
        unsigned = [url.removesuffix(SIGNED) for url in form.shards]
        assert again.fingerprint.names == names_digest(unsigned), "a signature may be another one"
    assert sorted(taken) == sorted(RECORDS * len(NAMES)), "what is needed to read is there"


@asynchronous
async def test_a_stream_in_a_loop(form: Form, seen: list[Any]) -> None:
    async with sr.open(form.shards, **form.settings()) as stream:
        seen += [batch async for batch in stream]
        seen += told_by(stream)


FAULTS: dict[str, tuple[str, dict[str, Any], list[FaultRule]]] = {
    "missing": ("absent.tfrecord", {}, []),
    "denied": ("a.tfrecord", {}, [FaultRule(status=403, code="AccessDenied")]),
    "silent": ("a.tfrecord", {"stall_timeout": 0.2}, [FaultRule(status=503)]),
    "redirected": ("a.tfrecord", {}, [FaultRule(status=301, code="PermanentRedirect")]),
    "damaged": ("damaged.tfrecord", {}, []),
    "cut": ("cut.tfrecord", {}, []),
    "too much": ("damaged.tfrecord", {"on_corrupt": "skip", "corrupt_budget": 0.0001}, []),
    "no Example": ("a.tfrecord", {"features": {"x": sr.FixedLenFeature((), "int64")}}, []),
    "no index": ("a.tfrecord", {"index": True}, []),
    "a function": ("a.tfrecord", {"map": lambda columns: 1 / 0}, []),
    "a directory": ("", {}, []),
    "a wrong setting": ("a.tfrecord", {"lanes": "many"}, []),
    "a wrong compression": ("a.tfrecord", {"compression": "gzip"}, []),
    "a wrong budget": ("a.tfrecord", {"on_corrupt": "skip"}, []),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error(form: Form, store: DevStore, fault: str, seen: list[Any]) -> None:
    name, more, rules = FAULTS[fault]
    store.faults = rules
    try:
        with (
            pytest.raises(Exception) as caught,
            sr.open(form.url(name), **form.settings(engine="thread", **more)) as stream,
        ):
            list(stream)
    finally:
        store.faults = []
    assert isinstance(caught.value, StreamrecError)
    seen += said_by(caught.value)


USER = f"user:{SECRET}@"
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a scheme": (f"htps://{USER}h/a.tfrecord{SIGNED}", {}),
    "a port": (f"https://{USER}h:x/a{SIGNED}", {}),
    "a directory": (f"https://{USER}h/a/", {}),
    "a range": (f"https://{USER}h/a-{{9..1}}{SIGNED}", {}),
    "a glob": (f"https://{USER}h/*{SIGNED}", {}),
    "nobody there": (f"http://{USER}127.0.0.1:1/a{SIGNED}", {"stall_timeout": 0.1}),
    "an ftp server": (f"ftp://{USER}127.0.0.1:1/a", {"stall_timeout": 0.1}),
    "a chain": (f"zip://a::http://{USER}127.0.0.1:1/a.zip{SIGNED}", {"stall_timeout": 0.1}),
    "keys in the URL": (f"s3://{USER}bucket", {}),
    "options that are none": ("s3://b/a", {"storage_options": f"key={SECRET}"}),
    "options in a list": ("s3://b/a", {"storage_options": [("key", SECRET)]}),
    "an option": ("s3://b/a", {"storage_options": {"kye": SECRET}}),
    "an option of http": ("http://h/a", {"storage_options": {"Authorization": SECRET}}),
    "a proxy": ("http://h/a", {"storage_options": {"proxy": f"{USER}h:1"}}),
}


def at_once(next_wait: Any) -> Any:
    """Count attempts as ``next_wait`` does, and wait for none."""

    def wait(backoff: Backoff, *given: Any) -> float:
        next_wait(backoff, *given)
        return 0.0

    return wait


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_opened(
    wrong: str, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next", at_once(Backoff.next))
    url, more = WRONG[wrong]
    with pytest.raises(StreamrecError) as caught, sr.open(url, engine="thread", **more) as stream:
        list(stream)
    seen += said_by(caught.value)


def test_a_feeder_and_its_clients(form: Form, seen: list[Any]) -> None:
    settings = validate(DatasetSettings, {"source": form.shards, **form.settings()})
    token = f"{SECRET}-of-the-feeder"
    with served({}, settings=server_settings(token=token)) as feeder:
        dataset = feeder.call(Dataset.open(settings))
        feeder.feeder.datasets["data"] = dataset
        address = f"{feeder.listen('tcp://127.0.0.1:0')}/data"
        with sr.connect(address, token=token) as stream:
            seen += [feeder.feeder, dataset, settings, *list(stream), *told_by(stream)]
        with pytest.raises(StreamrecError) as caught, sr.connect(address, token=f"{SECRET}!"):
            pass
        seen += said_by(caught.value)
        seen.append(_answers(feeder, token))
        feeder.call(feeder.feeder.aclose())
        feeder.call(dataset.aclose())


def _answers(feeder: Any, token: str) -> bytes:
    """Return the bytes that a feeder sends to a client: WELCOME, one batch, and more."""
    ours, serving = feeder.connect()
    received = bytearray()

    class Tapped(socket.socket):
        def recv_into(self, buffer: Any, *more: Any) -> int:
            count = super().recv_into(buffer, *more)
            received.extend(memoryview(buffer)[:count])
            return count

    with (
        contextlib.suppress(StreamrecError),
        contextlib.closing(BlockingFeed.open(Tapped(fileno=ours.detach()), token=token)),
    ):
        pass
    serving.result(100)
    return bytes(received)


@pytest.mark.parametrize(
    "address",
    [
        f"tcp://{SECRET}@h:1/d",
        f"tcp://h:1/d?token={SECRET}",
        f"unix://{SECRET}@h/x#d",
        f"unix:///x?token={SECRET}#d",
    ],
)
def test_an_address_with_a_token(address: str, seen: list[Any]) -> None:
    with pytest.raises(StreamrecError) as caught:
        sr.connect(address)
    seen += said_by(caught.value)


COMMANDS = [
    "info",
    "info --json",
    "cat",
    "cat --raw",
    "cat --raw --skip-corrupt",
    "verify",
    "verify --json",
    "--debug index --output /nowhere/at/all/index",
]
OBJECTS = ["a.tfrecord", "damaged.tfrecord", "absent.tfrecord"]


@pytest.mark.parametrize(("kind", "command", "name"), pairwise(FORMS, COMMANDS, OBJECTS))
def test_the_command_line(
    store: DevStore, kind: str, command: str, name: str, seen: list[Any]
) -> None:
    form = Form(store, kind)
    seen.append(streamrec(*command.split(), form.url(name), *storage_options(form.options)))


def test_descriptions(seen: list[Any]) -> None:
    url, options = f"https://{USER}h/a{SIGNED}", {"token": SECRET}
    dataset = {"source": {"x": url}, "weights": {"x": 1}, "steps_per_epoch": 1}
    daemon = {
        "server": {"token": SECRET},
        "datasets": {"d": {**dataset, "storage_options": options}},
    }
    settings = validate(DaemonSettings, daemon)
    seen += [settings, settings.datasets["d"], json.dumps(effective(settings))]
    seen += [RangedGet(url, url, 0, 1), ObjectInfo(url), Transport(proxy=url), ShardReport(url)]
    seen.append(Hello(dataset="d", world_size=1, token=SECRET))
    seen += [CorruptionLog([url], 1), Filter(Function("filter", len), None, [url])]
    seen.append(Selection((url,)))


def test_a_writer(store: DevStore, seen: list[Any]) -> None:
    with (
        pytest.raises(StreamrecError) as caught,
        sr.TFRecordWriter(f"{store.endpoint}/data/new.tfrecord{SIGNED}") as writer,
    ):
        seen.append(writer)
        writer.write(b"x")
    seen += said_by(caught.value)
