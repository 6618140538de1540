from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ObjectNotFound
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.blocking import BlockingStores

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("a", "b", "deep/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return f"{tmp_path}/"


def test_objects_are_listed_read_and_deleted(folder: str) -> None:
    stores = BlockingStores({})
    assert {info.url for info in stores.list_objects(folder, recursive=False)} == {
        f"{folder}a",
        f"{folder}b",
    }
    assert (stores.has_any(f"{folder}deep/"), stores.has_any(f"{folder}none/")) == (True, False)
    assert [info.url for info in stores.match(f"{folder}?")] == [f"{folder}a", f"{folder}b"]
    assert stores.match(f"{folder}none*") == []
    [one, missing] = stores.read_all([ObjectInfo(f"{folder}a", 1), ObjectInfo(f"{folder}no", 1)])
    assert one[0].tobytes() == b"a"
    assert isinstance(missing, ObjectNotFound)
    stores.publish({f"{folder}a": f"{folder}b"}, {f"{folder}a": 1})
    assert stores.read(ObjectInfo(f"{folder}b"), 0, 9)[0].tobytes() == b"a"
    stores.delete([f"{folder}b", f"{folder}no"])
    assert [info.url for info in stores.list_objects(folder)] == [f"{folder}deep/c"]


def test_threads_that_call_at_once_open_one_bridge(folder: str) -> None:
    stores, together = BlockingStores({}), Barrier(4)

    def call() -> int:
        together.wait(60)
        stores.list_objects(folder)
        return id(stores._opened)

    with ThreadPoolExecutor(4) as threads:
        assert len({each.result() for each in [threads.submit(call) for _ in range(4)]}) == 1


def test_a_pickle_holds_no_connection(folder: str) -> None:
    stores = BlockingStores({})
    assert stores.has_any(folder)
    other = pickle.loads(pickle.dumps(stores))
    assert other._opened is None
    assert other.has_any(folder)
