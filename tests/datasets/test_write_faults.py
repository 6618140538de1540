"""What goes wrong while a dataset is written: one clear error, and nothing half-written is seen."""

from __future__ import annotations

import math
import os
import re
import resource
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.devstore import DevStore, FaultRule
from streamrec.devstore.refusals import NO_EFFECTS, FaultEffects
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.stores.base import new_object
from streamrec.values.columns import BytesColumn
from tests.by_day import stops
from tests.datasets.datasets import comparable, contents, names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAYS: list[dict[str, Any]] = [{"shards": 2}, {"shard_bytes": 150_000}]
SOURCES = [None, "v1"]
NOBODY = 65534


def write(directory: Path, **how: Any) -> None:
    with ShardedWriter(directory / "x", **how) as writer:
        first = writer.skip_written()
        for number in range(first // 10, 8):
            # In one piece, so that bytes reach the disk before the end.
            writer.write_many(BytesColumn.of([b"%05000d" % number] * 10))


def visible(directory: Path) -> list[str]:
    return [name for name in names(directory) if not name.startswith(".")]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def unprivileged(directory: Path) -> Iterator[None]:
    """Take away the right to write to a directory."""
    user, mode = os.geteuid(), directory.stat().st_mode
    directory.chmod(0o555)
    if not user:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(mode)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for parent in tmp_path.parents:  # pytest makes them for its user alone
        if parent.stat().st_uid == os.geteuid() and "pytest" in parent.name:
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    place = tmp_path / "dataset"
    place.mkdir()
    return place


def whole(directory: Path, **how: Any) -> dict[str, Any]:
    (directory.parent / "whole").mkdir()
    write(directory.parent / "whole", **how)
    return contents(directory.parent / "whole")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_a_full_disk(place: Path, how: dict[str, Any], source: str | None) -> None:
    expected = whole(place, **how, source=source)
    with full_disk(120_000), pytest.raises(StoreError, match="the object cannot be written: File"):
        write(place, **how, source=source)
    assert names(place) == []
    write(place, **how, source=source)
    assert contents(place) == expected


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_a_directory_that_may_not_be_written(place: Path, how: dict[str, Any]) -> None:
    with unprivileged(place), pytest.raises(AccessDenied, match="check the permissions"):
        write(place, **how)
    assert names(place) == []


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_a_permission_that_is_lost(place: Path, how: dict[str, Any], source: str | None) -> None:
    expected = whole(place, **how, source=source)
    writer = ShardedWriter(place / "x", **how, source=source)
    writer.write_many(BytesColumn.of([b"%05000d" % 0] * 10))
    with unprivileged(place), pytest.raises(AccessDenied, match="check the permissions"):
        writer.close()
    assert visible(place) == []
    write(place, **how, source=source)
    assert contents(place) == expected


def test_a_directory_of_a_shard_s_name(place: Path) -> None:
    (place / "x-00001-of-00002").mkdir()
    with pytest.raises(StoreError, match=r"x-00001-of-00002: .* is a directory"):
        write(place, shards=2)
    assert names(place) == ["x-00001-of-00002"]


def test_an_exception_of_the_caller_leaves_nothing(place: Path) -> None:
    for how in WAYS:
        with pytest.raises(ZeroDivisionError), ShardedWriter(place / "x", **how) as writer:
            writer.write_many(BytesColumn.of([b"%05000d" % 0] * 100))
            raise ZeroDivisionError
        assert names(place) == []


class Outage:
    """A store that refuses every request from some number on, as if its client had been killed."""

    def __init__(self, store: DevStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begin(math.inf)
        monkeypatch.setattr(store._faults, "choose", self._choose)

    def _choose(self, *_: object) -> FaultEffects:
        if next(self.requests) < self.last:
            return NO_EFFECTS
        self.is_noticed = True
        return FaultEffects(status=403, code="AccessDenied")

    def begin(self, last: float) -> None:
        self.requests, self.last, self.is_noticed = count(), last, False


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", [{"shards": 2}, {"shard_bytes": 20_000}], ids=str)
def test_a_run_that_ends_at_any_request(
    how: dict[str, Any], source: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run ends with the same bytes, and leaves no object and no upload behind."""
    monkeypatch.setattr(new_object, "PART", 9000)
    with DevStore() as store:
        store.objects.create_bucket("b")
        outage = Outage(store, monkeypatch)

        def write(name: str) -> None:
            with ShardedWriter(
                f"s3://b/{name}/x", **how, source=source, storage_options=store.storage_options
            ) as writer:
                first = writer.skip_written()
                writer.write_many([b"%05000d" % number for number in range(first, 8)])

        def found(name: str) -> dict[str, Any]:
            own = {key: data for key, data in store.objects.items() if key.startswith(f"b/{name}/")}
            return comparable({key.removeprefix(f"b/{name}/"): own[key] for key in own})

        write("whole")
        expected, requests = found("whole"), next(outage.requests)
        for last in stops(range(requests)):
            outage.begin(last)
            try:
                write(f"{last}")
            except AccessDenied:
                assert outage.is_noticed
            else:  # how often the record is written meanwhile depends on how fast shards are
                assert not outage.is_noticed
            for name, data in found(f"{last}").items():
                assert name.startswith(".") or data == expected[name]
            outage.begin(math.inf)
            # Without a source it cannot be told whether another run has the same records.
            is_refused = source is None and "x.streamrec-manifest.json" in found(f"{last}")
            with pytest.raises(ConfigError) if is_refused else nullcontext():
                write(f"{last}")
            assert found(f"{last}") == expected, f"refused from request {last} on"
            assert store._s3._uploads == {}, f"refused from request {last} on"


@pytest.mark.parametrize("way", WAYS)
def test_errors_name_what_the_user_named(way: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'s3://x' names no bucket or no shards in it"):
        ShardedWriter("s3://x", **way)
    with DevStore() as store:
        options = store.storage_options
        with pytest.raises(ObjectNotFound, match="no such bucket") as caught:
            ShardedWriter("s3://bucket/x", storage_options=options, **way)
        assert caught.value.url == "s3://bucket/"
        store.objects.create_bucket("bucket")
        with (
            pytest.raises(AccessDenied) as denied,
            ShardedWriter("s3://bucket/x", storage_options=options, **way) as writer,
        ):
            writer.write(b"1")
            store.faults = [FaultRule(status=403, code="AccessDenied")]
        name = "x-?????-of-?????" if "shard_bytes" in way else r"x-0000\d-of-00002"
        assert re.fullmatch(f"s3://bucket/{name.replace('?', '[?]')}", denied.value.url or "")
