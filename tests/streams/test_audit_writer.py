from __future__ import annotations

import threading

import pytest

from streamrec.errors import AccessDenied, AuditFailed, StoreUnavailable
from streamrec.streams import audit_writer
from streamrec.streams.audit_part import Part
from streamrec.streams.audit_writer import MOST_WAITING, PartWriter, Waiting


class FakePart(Part):
    """A part of which only the bytes matter."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def encode(self) -> bytes:
        return self.data


class Store:
    """A store that fails as long as it is told to."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.failures: list[Exception] = []
        self.attempts = 0
        self.failed = threading.Event()

    def write(self, url: str, data: bytes) -> None:
        self.attempts += 1
        if self.failures:
            self.failed.set()
            raise self.failures.pop(0)
        self.written.append((url, data))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def ends() -> list[str]:
    return []


@pytest.fixture
def writer(store: Store, ends: list[str], monkeypatch: pytest.MonkeyPatch) -> PartWriter:
    monkeypatch.setattr(audit_writer, "DELAYS", (0.0, 0.0))
    return PartWriter(store.write, lambda: ends.append("ended"))


def add(writer: PartWriter, *names: str) -> None:
    for name in names:
        writer.add(Waiting(name, FakePart(name.encode())))


def test_objects_are_written_in_their_order(
    writer: PartWriter, store: Store, ends: list[str]
) -> None:
    add(writer, "a", "b", "c")
    writer.close()
    assert store.written == [("a", b"a"), ("b", b"b"), ("c", b"c")]
    assert ends == ["ended"]
    writer.close()
    add(writer, "d")
    writer.close()
    assert store.written[3:] == [("d", b"d")]


def test_what_may_pass_is_tried_again(writer: PartWriter, store: Store) -> None:
    store.failures = [StoreUnavailable("busy") for _ in range(2)]
    add(writer, "a")
    writer.close()
    assert (store.attempts, store.written) == (3, [("a", b"a")])


@pytest.mark.parametrize("failure", [StoreUnavailable("busy"), AccessDenied("no"), OSError("full")])
def test_a_failure_is_raised_and_the_object_kept(
    writer: PartWriter, store: Store, failure: Exception
) -> None:
    store.failures = [failure] * 20
    add(writer, "a")
    with pytest.raises(AuditFailed, match=f"{type(failure).__name__}: ") as raised:
        writer.close()
    assert raised.value.url == "a"
    assert store.written == []
    # Tried for the object, and once more for the end; only what may pass is tried in between.
    assert store.attempts == (6 if isinstance(failure, StoreUnavailable) else 2)
    store.failures.clear()
    add(writer, "b")
    writer.close()
    assert [url for url, _ in store.written] == ["a", "b"]


def test_a_check_raises_once_and_has_it_tried_again(writer: PartWriter, store: Store) -> None:
    store.failures = [AccessDenied("no")]
    writer.check()
    add(writer, "a")
    assert store.failed.wait(60)
    with pytest.raises(AuditFailed, match="AccessDenied"):
        while True:  # the failure is noted a moment after it came
            writer.check()
    writer.check()
    writer.close()
    assert [url for url, _ in store.written] == ["a"]


def test_a_store_that_hangs_ends_the_stream(
    writer: PartWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_writer, "PATIENCE", 0.01)
    gate = threading.Event()
    monkeypatch.setattr(writer, "_write", lambda *_: gate.wait(60))
    add(writer, *map(str, range(MOST_WAITING)))
    writer.check()
    add(writer, "one more")
    with pytest.raises(AuditFailed, match="does not answer"):
        writer.check()
    thread = writer._thread
    with pytest.raises(AuditFailed, match="does not answer"):
        writer.close()
    gate.set()
    assert thread is not None
    thread.join(60)
    assert not writer._waiting


def test_an_end_waits_for_nobody(writer: PartWriter, store: Store, ends: list[str]) -> None:
    add(writer, "a")
    thread = writer._thread
    writer.end()
    assert thread is not None
    thread.join(60)
    assert (store.written, ends) == ([("a", b"a")], ["ended"])
