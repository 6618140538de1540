"""The loader in one process: batches, state, epochs, and what runs ahead of the trainer."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.adapters.torch import as_loader
from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    MalformedPosition,
    OtherOrder,
    WrongFeatureType,
)
from tests.adapters.torch_shards import FEATURES, FEW, write_examples
from tests.by_day import stops
from tests.support import IN_TORCHS_WORKER, has_torch, torch

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from streamrec.adapters.torch.loader import Mover

pytestmark = [has_torch, IN_TORCHS_WORKER]
RECORDS, SIZE = 22, 4
STEPS = 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("examples"), RECORDS)


def opened(source: str, **values: Any) -> sr.Stream:
    plain = {"batch_size": SIZE, "shuffle": True, "shuffle_window": 300, "lanes": 2, "index": True}
    return sr.open(source, FEATURES, **{**plain, "engine": "thread", **values})


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def ahead_of_use() -> Mover:
    """Return a mover that reads ahead as for a GPU, and leaves the batches where they are."""
    from streamrec.adapters.torch.loader import Mover

    class Ahead(Mover):
        ahead = True

    return Ahead(None)


def loader_of(
    source: str, *, ahead: bool = False, restart: bool | None = None, **values: Any
) -> Any:
    loader = as_loader(opened(source, **values), restart=restart)
    if ahead:
        loader._mover = ahead_of_use()
    return loader


class TestIgnoreMasked:
    """For trainers that take no mask."""

    @pytest.mark.parametrize("shape", [(3,), (3, 2)])
    def test_labels_of_masked_rows_do_not_count(self, shape: tuple[int, ...]) -> None:
        from streamrec.adapters.torch.loader import ignore_masked

        labels, mask = torch.ones(shape, dtype=torch.int64), torch.tensor([True, False, True])
        filled = ignore_masked(labels, mask)
        assert (filled[[0, 2]] == 1).all()
        assert (filled[1] == torch.nn.CrossEntropyLoss().ignore_index).all()
        assert ignore_masked(labels, None) is labels

    @pytest.mark.parametrize("labels", [None, [1, 2]])
    def test_other_labels_are_told(self, labels: Any) -> None:
        from streamrec.adapters.torch.loader import ignore_masked

        assert ignore_masked(labels, torch.tensor([True, True])) is labels
        with pytest.warns(UserWarning, match="its loss counts masked rows"):
            assert ignore_masked(labels, torch.tensor([True, False])) is labels

    def test_a_batch_of_masked_rows_alone_has_no_nan(self) -> None:
        from streamrec.adapters.torch.loader import ignore_masked

        labels = torch.tensor([1, 2])
        with pytest.warns(UserWarning, match="where a whole batch is masked"):
            assert ignore_masked(labels, torch.tensor([False, False])) is labels


class TestBatches:
    def test_they_hold_what_the_streams_hold(self, source: str) -> None:
        for batch, tensors in zip(opened(source), as_loader(opened(source)), strict=True):
            assert list(tensors) == list(batch)
            assert tensors["id"].tolist() == batch["id"].tolist()
            assert tensors["x"].tolist() == batch["x"].tolist()
            assert tensors["name"].to_list() == batch["name"].to_list()
            assert [row.tolist() for row in tensors["tokens"].unbind()] == batch["tokens"].to_list()
            assert tensors["hot"].to_dense().tolist() == batch["hot"].to_dense().tolist()
            assert (tensors.rows, tensors.epoch) == (len(batch), batch.epoch)
            assert tensors.next_position.to_dict() == batch.next_position.to_dict()
            assert tensors.mask is batch.mask is None
            for ours, theirs in zip(tensors.origin, batch.origin, strict=True):
                assert ours.tolist() == theirs.tolist()

    def test_the_mask_is_a_tensor_beside_them(self, source: str) -> None:
        *_, last = as_loader(opened(source, remainder="pad"))
        assert last.mask.dtype == torch.bool
        assert last.mask.tolist() == [True, True, False, False]
        assert last.rows == SIZE

    def test_the_source_of_a_mix_is_beside_them(self, source: str) -> None:
        stream = sr.mix(
            {"a": (source, 0.5), "b": (source, 0.5)},
            FEATURES,
            batch_size=SIZE,
            lanes=2,
            engine="thread",
            epochs=None,
            **FEW,
        )
        with stream:
            batch = next(iter(as_loader(stream)))
        assert set(batch.source) <= {"a", "b"}
        assert len(batch.source) == batch.rows

    def test_moved_they_keep_it_all(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source, remainder="pad"))))
        moved = batch.to("meta")
        assert moved["x"].device.type == moved.mask.device.type == "meta"
        assert moved["name"] is batch["name"]
        assert moved.epoch == 0
        assert moved.next_position is batch.next_position

    def test_only_the_device_changes(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source))))
        with pytest.raises(TypeError):
            batch.to(torch.float16)

    def test_copied_and_pickled_they_keep_it_all(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source, remainder="pad"))))
        for other in (pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
            assert other["id"].tolist() == batch["id"].tolist()
            assert other.mask.tolist() == batch.mask.tolist()
            assert other.next_position.to_dict() == batch.next_position.to_dict()

    def test_rebuilt_by_other_code_they_say_what_is_lost(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source))))
        rebuilt = type(batch)({"id": batch["id"]})
        for name in ("mask", "epoch", "origin", "source", "next_position", "rows"):
            with pytest.raises(AttributeError, match="put together from tensors alone"):
                getattr(rebuilt, name)

    def test_to_a_device_at_once(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source), device="meta")))
        assert batch["x"].device.type == "meta"

    def test_cast(self, source: str) -> None:
        batch = next(iter(as_loader(opened(source), dtype={"id": "int32", "x": torch.bfloat16})))
        assert (batch["id"].dtype, batch["x"].dtype) == (torch.int32, torch.bfloat16)

    def test_single_records_are_dicts_of_tensors(self, source: str) -> None:
        loader = as_loader(opened(source, batch_size=None), dtype={"x": torch.float16})
        for row, tensors in zip(opened(source, batch_size=None), loader, strict=True):
            assert tensors["id"].item() == row["id"]
            assert tensors["x"].dtype == torch.float16
            assert tensors["x"].tolist() == row["x"].tolist()
            assert tensors["tokens"].tolist() == row["tokens"].tolist()
            assert tensors["name"] == row["name"]

    def test_raw_records_stay_bytes(self, source: str) -> None:
        with sr.open(source, batch_size=2, engine="thread") as stream:
            assert isinstance(next(iter(as_loader(stream)))["records"], sr.BytesColumn)
        with sr.open(source, engine="thread") as stream:
            assert isinstance(next(iter(as_loader(stream))), bytes)

    def test_a_device_that_this_machine_lacks(
        self, source: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ConfigError, match="device='mps' cannot be used here"):
            as_loader(opened(source), device="mps")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(ConfigError, match="device='cuda:2': torch finds 2 GPUs"):
            as_loader(opened(source), device=2)

    @pytest.mark.parametrize("device", ["gpu", object()])
    def test_what_is_no_device_is_refused(self, source: str, device: Any) -> None:
        with pytest.raises(ConfigError, match="torch has no device"):
            as_loader(opened(source), device=device)


@pytest.mark.parametrize("ahead", [False, True], ids=["direct", "ahead"])
@pytest.mark.parametrize("size", [SIZE, None], ids=["batches", "records"])
class TestOrder:
    def values(self, ahead: bool, size: int | None) -> dict[str, Any]:
        return {"ahead": ahead, "batch_size": size}

    def test_each_loop_is_an_epoch_with_its_own_shuffle(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        stream, loader = (
            opened(source, batch_size=size),
            loader_of(source, **self.values(ahead, size)),
        )
        for _ in range(3):
            assert ids(loader) == [batch["id"].tolist() for batch in stream]

    @pytest.mark.parametrize("by", [True, None], ids=["record", "shard"])
    def test_stopped_and_resumed_at_every_place_of_two_epochs(
        self, source: str, ahead: bool, size: int | None, by: bool | None
    ) -> None:
        values = {**self.values(ahead, size), "index": by}
        whole = loader_of(source, **values)
        epochs = [ids(whole), ids(whole)]
        every = 1 if size else 5
        for epoch in range(2):
            for k in stops(range(1, len(epochs[0]) + 1, every)):
                loader = loader_of(source, **values)
                for _ in range(epoch):
                    ids(loader)
                assert ids(islice(loader, k)) == epochs[epoch][:k]
                resumed = loader_of(source, **values)
                resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                assert ids(resumed) == epochs[epoch][k:]

    def test_after_a_break_it_goes_on(self, source: str, ahead: bool, size: int | None) -> None:
        loader, whole = (
            loader_of(source, **self.values(ahead, size)),
            opened(source, batch_size=size),
        )
        epoch = [batch["id"].tolist() for batch in whole]
        assert ids(islice(loader, 2)) + ids(islice(loader, 1)) + ids(loader) == epoch

    def test_an_evaluation_begins_at_the_beginning(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        whole = ids(loader_of(source, **self.values(ahead, size)))
        loader = loader_of(source, restart=True, **self.values(ahead, size))
        assert ids(islice(loader, 2)) == whole[:2]
        assert ids(islice(loader, 3)) == whole[:3]
        assert ids(loader) == whole
        assert ids(islice(loader, 1)) != whole[:1]

    def test_who_counts_the_batches_gets_the_next_epoch(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        """It never asks for a batch behind the last one, and no loop is empty."""
        loader, whole = (
            loader_of(source, **self.values(ahead, size)),
            opened(source, batch_size=size),
        )
        for _ in range(3):
            counted = ids(islice(loader, len(loader)))
            assert counted == [batch["id"].tolist() for batch in whole]

    def test_the_state_of_an_ended_epoch_begins_the_next(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        loader, resumed = (loader_of(source, **self.values(ahead, size)) for _ in range(2))
        ids(loader)
        resumed.load_state_dict(loader.state_dict())
        assert ids(resumed) == ids(loader)

    def test_set_epoch(self, source: str, ahead: bool, size: int | None) -> None:
        loader, other = (loader_of(source, **self.values(ahead, size)) for _ in range(2))
        first, second = ids(loader), ids(loader)
        assert ids(islice(other, 2)) == first[:2]
        other.set_epoch(0)  # a resumed loop that sets its epoch repeats nothing
        assert ids(islice(other, 1)) == first[2:3]
        other.set_epoch(1)
        assert ids(other) == second

    def test_a_stream_that_is_moved_takes_the_loader_along(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        stream = opened(source, batch_size=size)
        loader = as_loader(stream)
        loader._mover = ahead_of_use() if ahead else loader._mover
        first = ids(islice(loader, 3))
        stream.rewind()
        assert ids(islice(loader, 3)) == first

    def test_pickled_it_goes_on_where_it_stands(
        self, source: str, ahead: bool, size: int | None
    ) -> None:
        loader = loader_of(source, **self.values(ahead, size))
        ids(islice(loader, 2))
        copy = pickle.loads(pickle.dumps(loader))
        assert ids(copy) == ids(loader)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("adapters.torch.loader", "Loader"),
        ("adapters.torch.records", "Records"),
        ("adapters.torch.worker", "Notice"),
        ("pipeline.batch.torch_batch", "TensorBatch"),
        ("pipeline.batch.torch_columns", "Casts"),
        ("streams.ranks", "Assignment"),
        ("streams.stream", "Stream"),
        ("streams.workers", "Whereabouts"),
    ],
)
def test_what_earlier_versions_pickled_with_a_loader_is_found(module: str, name: str) -> None:
    kind = pickle.loads(f"cstreamrec.{module}\n{name}\n.".encode())
    assert kind.__name__ == name


def test_a_loop_without_gradients_that_goes_on_is_warned_of(source: str) -> None:
    """It may be an evaluation that is to have all records, and nothing marks it as one."""
    loader, training = loader_of(source), loader_of(source, restart=False)
    with torch.no_grad():
        ids(islice(loader, 2))
        with pytest.warns(UserWarning, match=r"as_loader\(restart=True\)"):
            assert len(ids(loader)) == STEPS - 2
        assert len(ids(loader)) == STEPS
        ids(islice(training, 2))
        assert len(ids(training)) == STEPS - 2


def pairs_of(source: str, *, ahead: bool = False, inputs: Any = "x", **values: Any) -> Any:
    loader = as_loader(opened(source, **values), inputs=inputs, targets="id")
    if ahead:
        loader._mover = ahead_of_use()
    return loader


class TestPairs:
    @pytest.mark.parametrize("ahead", [False, True])
    def test_they_are_tensors_of_the_batch(self, source: str, ahead: bool) -> None:
        batches = as_loader(opened(source))
        for (inputs, targets), batch in zip(pairs_of(source, ahead=ahead), batches, strict=True):
            assert inputs.tolist() == batch["x"].tolist()
            assert targets.tolist() == batch["id"].tolist()

    def test_several_are_a_dict(self, source: str) -> None:
        names = {"tokens": "tokens", "also": "x"}
        (inputs, _), batch = (next(iter(pairs_of(source, inputs=names))), next(opened(source)))
        assert list(inputs) == ["tokens", "also"]
        assert [row.tolist() for row in inputs["tokens"].unbind()] == batch["tokens"].to_list()

    def test_a_mask_comes_third(self, source: str) -> None:
        *_, (inputs, targets, mask) = pairs_of(source, remainder="pad")
        assert len(inputs) == len(targets) == SIZE
        assert mask.tolist() == [True, True, False, False]

    def test_they_are_cast_and_moved(self, source: str) -> None:
        stream = opened(source, remainder="pad")
        loader = as_loader(stream, "meta", {"x": "float16"}, inputs=["x"], targets="id")
        inputs, targets, mask = next(iter(loader))
        assert inputs["x"].dtype == torch.float16
        assert {part.device.type for part in (inputs["x"], targets, mask)} == {"meta"}

    @pytest.mark.parametrize("ahead", [False, True])
    def test_the_state_is_that_of_what_was_given(self, source: str, ahead: bool) -> None:
        whole = [targets.tolist() for _, targets in pairs_of(source)]
        for step in range(STEPS + 1):
            loader, resumed = (pairs_of(source, ahead=ahead) for _ in range(2))
            given = [targets.tolist() for _, targets in islice(loader, step)]
            resumed.load_state_dict(loader.state_dict())
            assert given + [targets.tolist() for _, targets in resumed] == whole

    def test_pickled_they_stay(self, source: str) -> None:
        copy = pickle.loads(pickle.dumps(pairs_of(source)))
        assert [targets.tolist() for _, targets in copy] == ids(opened(source))

    def test_single_records_are_collated_to_batches(self, source: str) -> None:
        loader = pairs_of(source, batch_size=None)
        data = torch.utils.data.DataLoader(loader, batch_size=SIZE)
        assert [targets.tolist() for _, targets in data] == ids(opened(source))

    def test_another_name_is_refused(self, source: str) -> None:
        with pytest.raises(ConfigError, match="no feature 'y', but id, x, name, tokens, hot"):
            next(iter(pairs_of(source, inputs="y")))

    def test_one_without_the_other_is_refused(self, source: str) -> None:
        with pytest.raises(ConfigError, match="targets= is given without inputs="):
            pairs_of(source, inputs=None)

    def test_raw_records_make_none(self, source: str) -> None:
        stream = sr.open(source, engine="thread")
        with pytest.raises(ConfigError, match="raw records, which have no features"):
            next(iter(as_loader(stream, inputs="x", targets="id")))


class TestState:
    def test_it_has_one_text_under_the_name_of_the_rank(self, source: str) -> None:
        loader = as_loader(opened(source, rank=1, world_size=2))
        for _ in range(2):
            (text,) = loader.state_dict().values()
            assert list(loader.state_dict()) == ["rank 1 of 2"]
            assert json.loads(text)["version"] == 3
            next(iter(loader))

    def test_that_of_a_bare_stream_serves(self, source: str) -> None:
        stream = opened(source)
        next(stream)
        loader = as_loader(opened(source))
        loader.load_state_dict(stream.state_dict())
        assert ids(loader) == [batch["id"].tolist() for batch in stream]

    def test_those_of_all_ranks_serve_another_world_size(self, source: str) -> None:
        half = {"index": None, "epochs": None, "batch_size": SIZE // 2, **FEW}
        loaders = [as_loader(opened(source, rank=r, world_size=2, **half)) for r in range(2)]
        for loader in loaders:
            ids(islice(loader, 2))
        one = as_loader(opened(source, index=None, epochs=None, **FEW))
        one.load_state_dict([loader.state_dict() for loader in loaders])
        rest = zip(*(ids(islice(loader, 3)) for loader in loaders), strict=True)
        assert [sorted(step) for step in ids(islice(one, 3))] == [sorted(a + b) for a, b in rest]

    def test_an_epoch_before_it_is_refused(self, source: str) -> None:
        """Accelerate sets the epochs from 0 on, whatever was loaded."""
        loader, resumed = as_loader(opened(source)), as_loader(opened(source))
        ids(loader)
        ids(islice(loader, 2))
        resumed.load_state_dict(loader.state_dict())
        with pytest.raises(ConfigError, match=r"set_epoch\(0\) would leave the state"):
            resumed.set_epoch(0)
        resumed.set_epoch(1)
        assert ids(resumed) == ids(loader)

    @pytest.mark.parametrize(
        "state", [{}, [], "x", {"rank 0 of 1": "{"}, {"rank 0 of 1": "7"}, b"x"]
    )
    def test_what_is_no_state_is_refused(self, source: str, state: Any) -> None:
        with pytest.raises(MalformedPosition):
            as_loader(opened(source)).load_state_dict(state)

    def test_a_tensor_is_no_state(self, source: str) -> None:
        with pytest.raises(MalformedPosition, match="a Tensor is not a state of a loader"):
            as_loader(opened(source)).load_state_dict(torch.zeros(3))

    def test_one_of_another_order_is_refused(self, source: str) -> None:
        loader, other = as_loader(opened(source)), as_loader(opened(source, seed=3))
        next(iter(loader))
        other.load_state_dict(loader.state_dict())
        with pytest.raises(OtherOrder, match="seed"):
            next(iter(other))


class TestLength:
    def test_it_is_that_of_a_run(self, source: str) -> None:
        assert len(as_loader(opened(source))) == STEPS
        assert len(as_loader(opened(source, epochs=3))) == -(-3 * RECORDS // SIZE)
        assert len(as_loader(opened(source, batch_size=None))) == RECORDS

    def test_where_it_is_not_known_it_is_a_type_error(self, source: str) -> None:
        loader = as_loader(opened(source, index=None))
        with pytest.raises(TypeError, match="the length is not known"):
            len(loader)
        assert loader
        assert len(list(loader)) == STEPS


class TestCuda:
    @pytest.fixture(autouse=True)
    def _device(self) -> None:
        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device")

    def test_batches_arrive_on_the_device(self, source: str) -> None:
        here, there = as_loader(opened(source)), as_loader(opened(source), device="cuda")
        for batch, moved in zip(here, there, strict=True):
            assert moved["x"].is_cuda
            assert moved["name"].to_list() == batch["name"].to_list()
            for name in ("id", "x", "hot", "tokens"):
                assert moved[name].is_cuda
                assert moved[name].dtype == batch[name].dtype
            assert moved["x"].cpu().tolist() == batch["x"].tolist()
            assert moved["hot"].to_dense().cpu().tolist() == batch["hot"].to_dense().tolist()
            assert moved["tokens"].values().cpu().tolist() == batch["tokens"].values().tolist()

    def test_pairs_arrive_there(self, source: str) -> None:
        stream = opened(source, remainder="pad")
        loader = as_loader(stream, "cuda", inputs=["x"], targets="id")
        given = []
        for inputs, targets, mask in loader:
            assert inputs["x"].is_cuda
            assert mask.is_cuda
            given.append(targets[mask].tolist())
        assert given == ids(opened(source))

    @pytest.mark.parametrize("k", range(1, STEPS + 1))
    def test_the_state_is_that_of_what_was_given(self, source: str, k: int) -> None:
        loader, resumed = (as_loader(opened(source), device="cuda") for _ in range(2))
        epoch = ids(as_loader(opened(source)))
        assert ids(islice(loader, k)) == epoch[:k]
        resumed.load_state_dict(loader.state_dict())
        assert ids(resumed) == epoch[k:]

    def test_memory_is_not_used_anew_too_early(self, source: str) -> None:
        """Long work on each batch is queued while the next ones are copied."""
        sums = []
        for batch in as_loader(opened(source, epochs=20), device="cuda"):
            torch.cuda._sleep(10_000_000)
            sums.append(batch["id"].sum())
        expected = [batch["id"].sum() for batch in opened(source, epochs=20)]
        assert [one.item() for one in sums] == expected


def test_an_error_comes_in_its_turn(tmp_path: Path) -> None:
    """The batch before it was read already, and is given."""
    path = tmp_path / "part.tfrecord"
    with sr.TFRecordWriter(str(path)) as writer:
        writer.write_many({"id": i} for i in range(6))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    features = {"id": sr.FixedLenFeature((), "int64")}
    loader: Any = as_loader(sr.open(str(path), features, batch_size=2, engine="thread"))
    loader._mover = ahead_of_use()
    there = iter(loader)
    assert ids([next(there), next(there)]) == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            next(there)


@pytest.mark.parametrize("size", [SIZE, None])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_does_not_arrive_on_its_device_comes_again(
    source: str, size: int | None, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(source, batch_size=size)
    before = ids(islice(loader, 2))
    state = loader.state_dict()

    def refuse(_: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(loader._mover, "send", refuse)
        next(loader)
    assert loader.state_dict() == state
    assert before + ids(loader) == ids(loader_of(source, batch_size=size))


def test_what_cannot_be_cast_is_not_counted(source: str) -> None:
    loader = as_loader(opened(source), dtype={"id": torch.bool})
    with pytest.raises(WrongFeatureType):
        list(loader)
    assert loader.state_dict() == as_loader(opened(source)).state_dict()


def test_the_memory_is_the_streams(source: str) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def note(batch: sr.Batch) -> dict[str, Any]:
        seen.append(batch["x"])
        return dict(batch)

    batches = list(as_loader(opened(source, transform=note)))
    addresses = {array.ctypes.data for array in seen}  # batches are transformed side by side
    assert {batch["x"].data_ptr() for batch in batches} == addresses


def test_dlpack_shares_the_memory_too(source: str) -> None:
    batch = next(iter(opened(source)))
    assert torch.from_dlpack(batch["x"]).data_ptr() == batch["x"].ctypes.data
