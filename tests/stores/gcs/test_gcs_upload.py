"""Resumable uploads to Google Cloud Storage: whole, or absent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, StoreError
from streamrec.stores.folder import Folder
from streamrec.stores.writing import write_object

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = 1 << 20


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as devstore:
        devstore.objects.create_bucket("bucket")
        yield devstore


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.stores.base.part_upload.PART", PART)


@pytest.mark.parametrize("size", [0, 10, PART - 1, PART, 3 * PART + 7])
def test_written(store: DevStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    write_object("gs://bucket/a b/ü%2F?", data[:size], store.gcs_options)
    assert store.objects["bucket/a b/ü%2F?"] == data[:size]


def test_nothing_is_seen_before_the_end(store: DevStore) -> None:
    writer = sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options)
    writer.write(bytes(2 * PART))
    assert dict(store.objects) == {}
    writer.discard()
    assert dict(store.objects) == {}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (FaultRule(method="PUT", nth=2, status=403), AccessDenied),
        (FaultRule(method="POST", nth=1, status=403), AccessDenied),
        (FaultRule(method="PUT", nth=3, status=400), StoreError),
    ],
    ids=["part", "beginning", "end"],
)
def test_what_fails_leaves_nothing(
    store: DevStore, fault: FaultRule, kind: type[Exception]
) -> None:
    store.faults = [fault]
    with pytest.raises(kind):
        write_object("gs://bucket/x", bytes(2 * PART + 1), store.gcs_options)
    assert dict(store.objects) == {}


def test_a_lost_answer_to_the_last_step_is_looked_up(store: DevStore) -> None:
    """The store has made the object; the request that is sent again finds no upload."""
    store.faults = [FaultRule(method="PUT", nth=3, reset_after=0)]
    data = bytes(range(256)) * (2 * PART // 256) + b"end"
    write_object("gs://bucket/x", data, store.gcs_options)
    assert store.objects["bucket/x"] == data


def test_an_abort_that_is_not_answered_is_given_up(
    store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamrec.stores.base.part_upload.ABORT_SECONDS", 0.01)
    store.faults = [FaultRule(method="DELETE", stall_after=0)]
    writer = sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options)
    writer.write(bytes(2 * PART))
    writer.discard()
    assert dict(store.objects) == {}


def test_a_part_that_the_store_was_too_busy_for_is_sent_again(store: DevStore) -> None:
    store.faults = [FaultRule(method="PUT", nth=1, status=503)]
    write_object("gs://bucket/x", bytes(2 * PART), store.gcs_options)
    assert len(store.objects["bucket/x"]) == 2 * PART


def test_objects_are_copied_and_removed(store: DevStore) -> None:
    folder = Folder("gs://bucket/a b/", store.gcs_options)
    folder.write("x", b"one")
    folder.publish({"x": "y/z"}, {"x": 3})
    assert dict(store.objects) == {"bucket/a b/x": b"one", "bucket/a b/y/z": b"one"}
    folder.remove("x", "y/z", "never")
    assert folder.sizes() == {}


def test_a_dataset_by_size(store: DevStore) -> None:
    with sr.ShardedWriter(
        "gs://bucket/d/x.tfrecord", shard_bytes=50, storage_options=store.gcs_options
    ) as writer:
        writer.write_many([b"%030d" % n for n in range(3)])
    assert sorted(store.objects) == [
        *(f"bucket/d/x-0000{n}-of-00003.tfrecord" for n in range(3)),
        "bucket/d/x.streamrec-index",
        "bucket/d/x.streamrec-manifest.json",
    ]


def test_many_shards_wait_in_files(store: DevStore) -> None:
    with sr.ShardedWriter(
        "gs://bucket/x", shards=9, index=False, storage_options=store.gcs_options
    ) as writer:
        writer.write_many([b"%d" % n for n in range(9)])
        assert list(store.objects) == ["bucket/.x.task-00000-of-00001.streamrec-part"]
    assert len(store.objects) == 10
