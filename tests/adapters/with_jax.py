"""Tests of the adapter with the real JAX, on eight devices of this machine.

test_jax.py runs them, in a process of their own: JAX has threads, which forks of other tests would
warn of, and the number of devices is fixed when it is imported.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, SingleDeviceSharding

import streamrec as sr
from streamrec.adapters.jax import GlobalBatches, agree, as_arrays, gather, rank_of
from streamrec.adapters.orbax import StreamCheckpointHandler, StreamRestore, StreamSave
from streamrec.errors import ConfigError, MalformedPosition, OtherOrder, TruncatedShard
from tests.adapters.test_torch import claim_of, open_rank
from tests.by_day import stops
from tests.interrupts import Interrupted, interrupted_at
from tests.pipeline.small_datasets import write, write_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

ocp: Any = import_module("orbax.checkpoint")
PartitionSpec: Any = import_module("jax.sharding").PartitionSpec

RECORDS = 40
DTYPES: Any = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "float16", "bool")
"""The dtypes that arrive as they are."""
NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
IDS = {"id": sr.FixedLenFeature((), "int64")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("jax")
    for shard in range(2):
        with sr.TFRecordWriter(f"{directory}/part-{shard}.tfrecord") as writer:
            for number in range(RECORDS // 2):
                writer.write(record(100 * shard + number))
    write_index(f"{directory}/part-*.tfrecord", 1000)
    return f"{directory}/part-*.tfrecord"


def record(number: int) -> dict[str, Any]:
    raw = {
        dtype: np.array([number % 2, number % 3]).astype(dtype).tobytes()
        for dtype in (*DTYPES, *NARROWED)
    }
    wide = {
        "two": 2,
        "wide": number << 40,
        "deep": float(number),
        "huge": np.float64(1e300 * number).tobytes(),
    }
    return {"id": number, "name": b"n" * number, "x": [float(number), -1.0], **raw, **wide}


@pytest.fixture(scope="module")
def sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))


def opened(source: str, features: Any = IDS, **settings: Any) -> sr.Stream:
    settings = {"batch_size": 8, "lanes": 2, "engine": "thread", **settings}
    return sr.open(source, features, **settings)


def shuffled(source: str, sharding: NamedSharding, **settings: Any) -> GlobalBatches:
    settings = {"shuffle": True, "shuffle_window": 500, "epochs": 2, **settings}
    return as_arrays(opened(source, **settings), sharding)


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_an_evaluation_begins_at_the_beginning(source: str, sharding: NamedSharding) -> None:
    arrays = as_arrays(opened(source), sharding, restart=True)
    part = ids(batch for batch, _ in zip(arrays, range(2), strict=False))
    whole = ids(arrays)
    assert part == whole[:2]
    assert len(whole) > 2


class TestValues:
    def test_they_are_those_of_the_stream(self, source: str, sharding: NamedSharding) -> None:
        features = {
            **IDS,
            "x": sr.FixedLenFeature((2,), "float32"),
            **{dtype: sr.FixedLenFeature((2,), dtype, raw=True) for dtype in (*DTYPES, *NARROWED)},
        } | {"int64": sr.FixedLenFeature((2,), "int64", raw=True)}
        dtypes = {**dict(zip(DTYPES, DTYPES, strict=True)), **NARROWED}
        theirs = list(opened(source, features))
        ours = list(as_arrays(opened(source, features), sharding))
        assert len(ours) == len(theirs) == RECORDS // 8
        for batch, expected in zip(ours, theirs, strict=True):
            assert list(batch) == list(expected)
            for name, array in batch.items():
                assert array.sharding == sharding
                assert array.dtype == dtypes.get(name, "int32" if name == "id" else "float32")
                np.testing.assert_array_equal(np.asarray(array), expected[name])
            assert (len(batch), batch.epoch, batch.mask) == (8, 0, None)
            assert batch.origin.records.tolist() == expected.origin.records.tolist()
            assert batch.next_position == expected.next_position

    def test_each_batch_is_copied_once_and_one_ahead(
        self, source: str, sharding: NamedSharding, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied: list[list[int]] = []
        copy = GlobalBatches._global

        def noted(self: GlobalBatches, batch: Any) -> Any:
            copied.append(batch["id"].tolist())
            return copy(self, batch)

        monkeypatch.setattr(GlobalBatches, "_global", noted)
        arrays = as_arrays(opened(source), sharding)
        given = []
        for batch in arrays:
            given.append(batch["id"].tolist())
            assert copied[: len(given)] == given
            assert len(copied) <= len(given) + 1
        assert copied == given

    def test_64_bits_stay_where_jax_has_them(self, source: str, sharding: NamedSharding) -> None:
        features = {"wide": sr.FixedLenFeature((), "int64")}
        with jax.enable_x64(True):
            (batch, *_) = as_arrays(opened(source, features), sharding)
        assert batch["wide"].dtype == np.int64
        assert np.asarray(batch["wide"]).max() > 1 << 40

    def test_a_mask_comes_along(self, source: str, sharding: NamedSharding) -> None:
        stream = opened(source, batch_size=24, remainder="pad", index=True)
        masks: list[Any] = [batch.mask for batch in as_arrays(stream, sharding)]
        assert [int(mask.sum()) for mask in masks] == [24, 16]
        assert masks[0].sharding == sharding

    def test_another_dimension_may_be_sharded_too(self, source: str) -> None:
        mesh = jax.make_mesh((4, 2), ("data", "model"))
        both = NamedSharding(mesh, PartitionSpec("data", "model"))
        features = {"x": sr.FixedLenFeature((2,), "float32")}
        batch = next(as_arrays(opened(source, features), both))
        assert {shard.data.shape for shard in batch["x"].addressable_shards} == {(2, 1)}

    def test_what_is_converted_is_said_once(
        self, source: str, sharding: NamedSharding, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "streamrec"):
            list(as_arrays(opened(source), sharding))
        assert [text for text in caplog.messages if "id:" in text] == [
            "id: int64 is delivered as int32 (jax_enable_x64)"
        ]


class TestPairs:
    FEATURES = IDS | {
        "x": sr.FixedLenFeature((2,), "float32"),
        "name": sr.FixedLenFeature((), bytes),
    }

    def pairs(self, source: str, sharding: NamedSharding, **settings: Any) -> GlobalBatches:
        stream = opened(source, self.FEATURES, **settings)
        return as_arrays(stream, sharding, inputs={"point": "x"}, targets="id")

    def test_they_are_global_arrays_of_the_features_named(
        self, source: str, sharding: NamedSharding
    ) -> None:
        batches = list(opened(source, self.FEATURES))
        for (inputs, targets), batch in zip(self.pairs(source, sharding), batches, strict=True):
            assert list(inputs) == ["point"]
            assert inputs["point"].sharding == targets.sharding == sharding
            np.testing.assert_array_equal(inputs["point"], batch["x"])
            np.testing.assert_array_equal(targets, batch["id"])

    def test_a_mask_comes_third(self, source: str, sharding: NamedSharding) -> None:
        *_, (_, targets, mask) = self.pairs(
            source, sharding, batch_size=24, remainder="pad", index=True
        )
        assert mask.sharding == targets.sharding
        assert mask.tolist() == [True] * 16 + [False] * 8

    def test_the_state_is_that_of_what_was_given(
        self, source: str, sharding: NamedSharding
    ) -> None:
        whole = [targets.tolist() for _, targets in self.pairs(source, sharding)]
        for step in range(len(whole) + 1):
            first, second = (self.pairs(source, sharding) for _ in range(2))
            given = [targets.tolist() for _, targets in itertools.islice(first, step)]
            second.load_state_dict(first.state_dict())
            assert given + [targets.tolist() for _, targets in second] == whole

    def test_another_name_is_refused_and_takes_no_batch(
        self, source: str, sharding: NamedSharding
    ) -> None:
        stream = opened(source, self.FEATURES)
        with pytest.raises(ConfigError, match="no feature 'y', but id, x, name"):
            next(as_arrays(stream, sharding, inputs="x", targets="y"))
        assert stream.state_dict()["step"] == 0
        with pytest.raises(ConfigError, match="inputs= is given without targets="):
            as_arrays(stream, sharding, inputs="x")


class TestRefusals:
    def test_what_is_no_sharding(self, source: str, sharding: NamedSharding) -> None:
        for wrong in (None, sharding.mesh, sharding.spec):
            with pytest.raises(ConfigError, match="as_arrays takes a sharding, not a"):
                as_arrays(opened(source), wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("feature", "match"),
        [
            ({"name": sr.FixedLenFeature((), bytes)}, "'name' is of type BytesColumn"),
            ({"x": sr.RaggedFeature("float32")}, "'x' is of type Ragged"),
            ({"x": sr.VarLenFeature("float32")}, "'x' is of type Ragged"),
            ({"x": sr.ShapedFeature(("two",), "float32")}, "'x' is of type Arrays"),
            ({"wide": sr.FixedLenFeature((), "int64")}, "'wide' holds .* does not fit into int32"),
            (
                {"huge": sr.FixedLenFeature((), "float64", raw=True)},
                "'huge' holds .* does not fit into float32",
            ),
        ],
    )
    def test_a_column_that_jax_has_no_array_for(
        self, source: str, sharding: NamedSharding, feature: Any, match: str
    ) -> None:
        with pytest.raises(ConfigError, match=match):
            list(as_arrays(opened(source, feature), sharding))

    def test_it_is_refused_at_its_turn(self, source: str, sharding: NamedSharding) -> None:
        """The wide numbers begin in the second batch, which is copied beside the first."""
        stream = opened(
            source, {"wide": sr.FixedLenFeature((), "int64")}, lanes=1, batch_size=8,
            transform=lambda batch: {"id": batch["wide"] * (batch["wide"] > 7 << 40)},
        )  # fmt: skip
        arrays = as_arrays(stream, sharding)
        assert ids([next(arrays)]) == [[0] * 8]
        for _ in range(2):
            with pytest.raises(ConfigError, match="'id' holds"):
                next(arrays)
        assert stream.state_dict()["step"] == 1

    def test_single_records(self, source: str, sharding: NamedSharding) -> None:
        with pytest.raises(ConfigError, match="single records"):
            next(as_arrays(opened(source, batch_size=None), sharding))

    def test_a_batch_that_the_devices_do_not_divide(
        self, source: str, sharding: NamedSharding
    ) -> None:
        arrays = as_arrays(opened(source, batch_size=24), sharding)
        next(arrays)
        next(arrays)
        arrays = as_arrays(opened(source, batch_size=12), sharding)
        with pytest.raises(ConfigError, match=r"'id' of shape \(12,\) does not fit the sharding"):
            next(arrays)

    def test_another_rank_than_the_sharding_s(self, source: str, sharding: NamedSharding) -> None:
        arrays = as_arrays(opened(source, rank=1, world_size=2, steps_per_epoch=2), sharding)
        with pytest.raises(ConfigError, match=r"rank 1 of 2, but by .* rank 0 of 1.*rank_of"):
            next(arrays)

    def test_an_error_of_the_stream_comes_behind_what_was_read(
        self, sharding: NamedSharding, tmp_path: Path
    ) -> None:
        with sr.TFRecordWriter(f"{tmp_path}/part.tfrecord") as writer:
            writer.write_many({"id": number} for number in range(24))
        whole = (tmp_path / "part.tfrecord").read_bytes()
        (tmp_path / "part.tfrecord").write_bytes(whole[:-5])
        arrays = as_arrays(opened(f"{tmp_path}/part.tfrecord"), sharding)
        assert ids(next(arrays) for _ in range(2)) == [[*range(8)], [*range(8, 16)]]
        with pytest.raises(TruncatedShard):
            next(arrays)


class TestIterating:
    def test_epochs_follow_each_other(self, source: str, sharding: NamedSharding) -> None:
        arrays = shuffled(source, sharding, epochs=1)
        with opened(source, shuffle=True, shuffle_window=500) as stream:
            for _ in range(2):
                assert ids(arrays) == ids(stream)
                assert arrays.state_dict() == stream.state_dict()

    def test_another_loop_goes_on_after_a_break(self, source: str, sharding: NamedSharding) -> None:
        stream = opened(source, epochs=2)
        head = [ids([next(as_arrays(stream, sharding))])[0] for _ in range(4)]
        assert head + ids(as_arrays(stream, sharding)) == ids(opened(source, epochs=2))

    @pytest.mark.parametrize("move", ["rewind", "set_epoch"])
    def test_a_stream_that_is_moved_gives_nothing_from_before(
        self, source: str, sharding: NamedSharding, move: str
    ) -> None:
        arrays = shuffled(source, sharding)
        whole = ids(arrays)
        stream = opened(source, shuffle=True, shuffle_window=500, epochs=2)
        arrays = as_arrays(stream, sharding)
        next(arrays)
        stream.rewind() if move == "rewind" else stream.set_epoch(1)
        first = ids(arrays)[:5]
        if move == "rewind":
            assert first == whole[:5]
        else:  # its lanes begin here, and take turns from here on
            assert sorted(chain(*first)) == sorted(chain(*whole[5:]))

    def test_the_length_is_the_stream_s(self, source: str, sharding: NamedSharding) -> None:
        with opened(source, index=True) as stream:
            assert len(as_arrays(stream, sharding)) == 5

    def test_an_empty_epoch_is_no_error(self, sharding: NamedSharding, tmp_path: Path) -> None:
        source = write(tmp_path, ((),))
        assert list(as_arrays(opened(source, None), sharding)) == []


@pytest.mark.filterwarnings("ignore:.*never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_loses_nothing(source: str, sharding: NamedSharding) -> None:
    whole = ids(opened(source))
    for step in itertools.count(0, 19):
        arrays = as_arrays(opened(source), sharding)
        seen, interrupted = ids([next(arrays)]), False
        try:
            with interrupted_at(step):
                second = next(arrays)
            seen += ids([second])
        except Interrupted:
            interrupted = True
        assert arrays.state_dict()["step"] == len(seen)
        assert seen + ids(arrays) == whole, step
        if not interrupted:
            break
    assert step > 100


class TestState:
    @pytest.mark.parametrize("index", [None, True])
    @pytest.mark.parametrize("way", ["state_dict", "get_state", "the stream's"])
    def test_exact_at_every_step(
        self, source: str, sharding: NamedSharding, index: Any, way: str
    ) -> None:
        whole = ids(shuffled(source, sharding, index=index))
        for step in stops(range(len(whole) + 1)):
            stream = opened(
                source, shuffle=True, shuffle_window=500, epochs=2, index=index
            )  # fmt: skip
            first, second = as_arrays(stream, sharding), shuffled(source, sharding, index=index)
            head = ids(next(first) for _ in range(step))
            if way == "get_state":
                second.set_state(first.get_state())
            else:
                state = first.state_dict() if way == "state_dict" else stream.state_dict()
                second.load_state_dict(json.loads(json.dumps(state)))
            assert head + ids(second) == whole

    @pytest.mark.parametrize("state", [{"version": 3}, b"\xff\x00", "", None])
    def test_what_get_state_did_not_return(
        self, source: str, sharding: NamedSharding, state: Any
    ) -> None:
        with pytest.raises(MalformedPosition, match=r"not a state that get_state\(\) returned"):
            shuffled(source, sharding).set_state(state)

    def test_it_rides_on_the_batch(self, source: str, sharding: NamedSharding) -> None:
        arrays = shuffled(source, sharding)
        for batch in arrays:
            assert batch.next_position.to_dict() == arrays.state_dict()

    def test_a_state_of_another_order_is_refused(
        self, source: str, sharding: NamedSharding
    ) -> None:
        first, second = shuffled(source, sharding), shuffled(source, sharding, seed=9)
        next(first)
        second.load_state_dict(first.state_dict())
        with pytest.raises(OtherOrder):
            next(second)


class TestOrbax:
    def test_exact_at_every_step(
        self, source: str, sharding: NamedSharding, tmp_path: Path
    ) -> None:
        arrays = shuffled(source, sharding)
        whole = ids(shuffled(source, sharding))
        with ocp.CheckpointManager(tmp_path / "run") as manager:
            for step in range(3):
                next(arrays)
                model = ocp.args.StandardSave({"w": jax.numpy.full(3, step)})
                args = ocp.args.Composite(model=model, stream=StreamSave(arrays))
                manager.save(step, args=args)
            next(arrays)  # the state is that of the call, though Orbax writes in the background
        with ocp.CheckpointManager(tmp_path / "run") as manager:
            for step in range(3):
                new: Any = shuffled(source, sharding)
                if step == 1:
                    new = opened(source, shuffle=True, shuffle_window=500, epochs=2)
                restored = manager.restore(
                    step,
                    args=ocp.args.Composite(
                        model=ocp.args.StandardRestore(), stream=StreamRestore(new)
                    ),
                )
                assert restored["stream"] is new
                assert restored["model"]["w"].tolist() == [step] * 3
                assert ids(new) == whole[step + 1 :]

    def test_another_world_size(self, source: str, sharding: NamedSharding, tmp_path: Path) -> None:
        ranks = [
            opened(source, batch_size=4, rank=rank, world_size=2, steps_per_epoch=5)
            for rank in range(2)
        ]
        for rank, stream in enumerate(ranks):
            next(stream)
            text = json.dumps(stream.state_dict())
            (tmp_path / f"process_{rank}-of-2.json").write_text(text)
        one = opened(source, steps_per_epoch=5)
        arrays = as_arrays(one, sharding)
        StreamCheckpointHandler().restore(tmp_path, StreamRestore(arrays))
        whole = ids(opened(source, steps_per_epoch=5))
        assert ids(arrays) == whole[1:]

    def test_a_checkpoint_without_a_stream(
        self, source: str, sharding: NamedSharding, tmp_path: Path
    ) -> None:
        with pytest.raises(MalformedPosition, match="no state of a stream"):
            StreamCheckpointHandler().restore(tmp_path, StreamRestore(shuffled(source, sharding)))

    def test_a_checkpoint_that_was_not_written_whole(
        self, source: str, sharding: NamedSharding, tmp_path: Path
    ) -> None:
        (tmp_path / "process_0-of-1.json").write_text('{"version":')
        with pytest.raises(MalformedPosition, match="is not JSON, so it was not written whole"):
            StreamCheckpointHandler().restore(tmp_path, StreamRestore(shuffled(source, sharding)))


class TestPytree:
    def test_a_compiled_function_takes_batches(self, source: str, sharding: NamedSharding) -> None:
        traces = []

        def double(batch: sr.Batch) -> sr.Batch:
            traces.append(len(batch))
            doubled: sr.Batch = jax.tree.map(lambda column: 2 * column, batch)
            return doubled

        compiled, arrays = jax.jit(double), as_arrays(opened(source), sharding)
        doubled = [compiled(batch) for batch in arrays]
        assert ids(doubled) == [[2 * one for one in part] for part in ids(opened(source))]
        assert traces == [8]
        assert len(doubled[0]) == 8

    def test_it_has_no_stale_facts(self, source: str, sharding: NamedSharding) -> None:
        batch = next(as_arrays(opened(source), sharding))
        part = jax.tree.map(lambda column: np.asarray(column)[:4], batch)
        assert len(part) == 4
        for name in ("epoch", "origin", "next_position"):
            with pytest.raises(AttributeError, match=name):
                getattr(part, name)

    @pytest.mark.parametrize("shapes", [((), ()), ((2,), (3,)), ((2,), ())])
    def test_columns_without_a_common_length_have_none(self, source: str, shapes: Any) -> None:
        features = {**IDS, "x": sr.FixedLenFeature((2,), "float32")}
        batch = next(opened(source, features))
        columns = iter(shapes)
        part = jax.tree.map(lambda _: np.zeros(next(columns)), batch)
        with pytest.raises(AttributeError, match="rows"):
            len(part)

    def test_names_are_paths(self, source: str) -> None:
        (batch,) = opened(source, index=True, remainder="pad").peek()
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)
        ]
        assert paths == ["['id']", ".mask"]

    def test_numbers_that_jax_would_cut_are_refused(self, source: str) -> None:
        batch = list(opened(source, {"wide": sr.FixedLenFeature((), "int64")}))[1]
        for function in (jax.jit(lambda batch: batch), jax.device_put):
            with pytest.raises(ConfigError, match="'wide' holds"):
                function(batch)

    def test_what_jax_has_no_array_for_is_refused(self, source: str) -> None:
        batch = next(opened(source, {"name": sr.FixedLenFeature((), bytes)}))
        with pytest.raises(TypeError, match="BytesColumn"):
            jax.jit(lambda batch: batch)(batch)


class TestRankOf:
    @pytest.mark.parametrize("spec", [(), ("data",), (("data", "model"),), (None, "model")])
    def test_a_process_alone_reads_everything(self, spec: tuple[Any, ...]) -> None:
        mesh = jax.make_mesh((4, 2), ("data", "model"))
        assert rank_of(NamedSharding(mesh, PartitionSpec(*spec))) == (0, 1)

    def test_of_a_mesh(self) -> None:
        assert sr.rank_of(jax.make_mesh((4, 2), ("fsdp", "tensor"))) == (0, 1)
        with pytest.raises(ConfigError, match="dimension 'rows'"):
            sr.rank_of(jax.make_mesh((8,), ("rows",)))
        with pytest.raises(ConfigError, match="abstract mesh of JAX has no devices"):
            sr.rank_of(jax.make_mesh((8,), ("data",)).abstract_mesh)

    def test_a_sharding_says_itself_what_it_divides(self) -> None:
        sharding = NamedSharding(jax.make_mesh((8,), ("rows",)), PartitionSpec("rows"))
        assert sr.rank_of(sharding) == (0, 1)
        with pytest.raises(ConfigError, match="leave out data="):
            sr.rank_of(sharding, data=("rows",))

    def test_one_device(self) -> None:
        assert rank_of(SingleDeviceSharding(jax.devices()[3])) == (0, 1)


# -- agreement -------------------------------------------------------------------------------------


def collective(others: list[str]) -> Callable[[Any], Any]:
    """Return a stand-in for JAX's, where the other processes have these texts."""
    rows = [np.frombuffer(text.encode(), np.uint8) for text in others]

    def allgather(array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == np.int32:
            return np.array([array, *([len(row)] for row in rows)])
        return np.stack([array, *(np.resize(row, len(array)) for row in rows)])

    return allgather


@given(st.text(), st.lists(st.text(min_size=1), max_size=4))
def test_texts_of_any_length_are_gathered(text: str, others: list[str]) -> None:
    assert gather(text, collective(others)) == [text, *others]


def test_a_process_alone_gets_no_axis() -> None:
    assert gather("alone", lambda array: array) == ["alone"]


def fake_jax(monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
    multihost_utils = ModuleType("jax.experimental.multihost_utils")
    multihost_utils.__dict__["process_allgather"] = collective(others)
    experimental = ModuleType("jax.experimental")
    experimental.__dict__["multihost_utils"] = multihost_utils
    for module in (experimental, multihost_utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, ((40,) * 9, (30,) * 8))
    others = [claim_of(source, 1), claim_of(source, 1, batch_size=3)]
    with open_rank(source, 0) as stream:
        fake_jax(monkeypatch, others[:1])
        agree(stream)
        fake_jax(monkeypatch, others[1:])
        with pytest.raises(ConfigError, match="global_batch is 4 in process 0 and 6 in process 1"):
            agree(stream)


def test_a_process_alone_agrees_with_itself(tmp_path: Path) -> None:
    with sr.open(write(tmp_path, ((40,) * 9,)), engine="thread") as stream:
        agree(stream)
