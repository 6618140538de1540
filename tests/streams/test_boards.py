from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.streams import boards
from streamrec.streams.boards import JaxBoard, TorchBoard, find_board

if TYPE_CHECKING:
    from pathlib import Path


class Store:
    """A store of torch.distributed, as far as it is used; to get a missing key would hang."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


class Client:
    """The client of jax.distributed, as far as it is used."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [item for item in self.values.items() if item[0].startswith(folder)]


def torch_board(store: Any, rank: int) -> TorchBoard:
    inner = SimpleNamespace(_get_default_store=lambda: store)
    distributed = SimpleNamespace(
        distributed_c10d=inner, get_rank=lambda: rank, get_world_size=lambda: 12
    )
    return TorchBoard("train", distributed)


def jax_board(client: Any, rank: int) -> JaxBoard:
    state = SimpleNamespace(global_state=SimpleNamespace(client=client))
    jax = SimpleNamespace(
        _src=SimpleNamespace(distributed=state),
        process_index=lambda: rank,
        process_count=lambda: 12,
    )
    return JaxBoard("train", jax)


@pytest.mark.parametrize(("make", "store"), [(torch_board, Store), (jax_board, Client)])
def test_each_rank_has_a_place(make: Any, store: Any) -> None:
    shared = store()
    one, eleven = make(shared, 1), make(shared, 11)
    assert (one.rank, one.size) == (1, 12)
    assert one.read(1) is None
    eleven.write("late")
    assert one.read(1) is None
    one.write("well")
    one.write("late, too")
    assert (eleven.read(1), one.read(11)) == ("late, too", "late")


def test_a_store_is_asked_over_a_connection_of_our_own() -> None:
    class Cloned(Store):
        def clone(self) -> Store:
            return Store()

    shared = Cloned()
    torch_board(shared, 0).write("well")
    assert shared.values == {}


def test_without_a_framework_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.distributed", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_board("train") is None
    # One that is imported and not initialised knows no other ranks either.
    torch = ModuleType("torch.distributed")
    torch.__dict__.update(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert find_board("train") is None


def test_torch_comes_before_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch_board(Store(), 3)
    monkeypatch.setattr(boards, "TorchBoard", lambda topic, _: made if topic == "train" else None)
    torch = ModuleType("torch.distributed")
    torch.__dict__.update(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    assert find_board("train") is made


TORCH = """
import sys
import torch.distributed as distributed
from streamrec.streams.boards import find_board
place, rank = sys.argv[1:]
distributed.init_process_group("gloo", init_method=place, rank=int(rank), world_size=2)
board = find_board("train")
assert board.read(1 - board.rank) is None or board.rank == 1
distributed.barrier()
board.write(f"rank {board.rank}")
distributed.barrier()
print(board.size, board.read(1 - board.rank))
distributed.barrier()
distributed.destroy_process_group()
"""
JAX = """
import sys
import jax
from streamrec.streams.boards import find_board
place, rank = sys.argv[1:]
jax.distributed.initialize(place, 2, int(rank))
board = find_board("train")
board.write("the first word")
board.write(f"rank {board.rank}")
client = jax._src.distributed.global_state.client
client.wait_at_barrier("written", 60_000)
print(board.size, board.read(1 - board.rank))
assert board.read(5) is None
client.wait_at_barrier("read", 60_000)
jax.distributed.shutdown()
"""


def played(program: str, place: str) -> list[str]:
    """Run a program as two ranks; return what each printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, place, str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=100)[0].strip() for rank in ranks]


@pytest.mark.night
@pytest.mark.timeout(200)
def test_the_real_store_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    assert played(TORCH, f"file://{tmp_path}/store") == ["2 rank 1", "2 rank 0"]


@pytest.mark.night
@pytest.mark.timeout(200)
def test_the_real_store_of_jax() -> None:
    pytest.importorskip("jax")
    address = f"127.0.0.1:{free_port()}"
    assert played(JAX, address) == ["2 rank 1", "2 rank 0"]


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
