from __future__ import annotations

import contextlib
import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from streamrec.errors import (
    ConfigError,
    MalformedPosition,
    OtherDataset,
    OtherOrder,
    OtherVersion,
    StateError,
)
from streamrec.plan.order.coordinates import LANE, NAMES, OWN, POINT, POINTS, structured
from streamrec.plan.state.fingerprint import Fingerprint, names_digest, relative_names
from streamrec.plan.state.position import (
    LARGEST,
    LAST_EPOCH,
    MOST_CRC,
    MOST_SKIPPED,
    Position,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


FINGERPRINT = Fingerprint("0123456789abcdef", 100, "shard", 12, True, 7, 1 << 28, 256)
NUMBERS = st.integers(0, LARGEST)
EPOCHS = st.integers(0, LAST_EPOCH)
CRCS = st.integers(0, MOST_CRC)


@st.composite
def positions(
    draw: st.DrawFn,
    world_size: int | None = None,
    rank: int | None = None,
    components: int | None = None,
) -> Position:
    """Draw positions of a mix of so many components; with 0 there is no mix."""
    world_size = world_size or draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    rank = draw(st.integers(0, world_size - 1)) if rank is None else rank
    owned = 12 // world_size
    if components is None:
        components = draw(st.integers(0, 3))
    rows = draw(
        st.lists(
            st.lists(NUMBERS, min_size=owned, max_size=owned),
            min_size=OWN,
            max_size=OWN,
        )
    )
    shape = owned, max(1, components)
    sizes = draw(arrays(np.int64, shape, elements=NUMBERS))
    rows[3] = draw(st.lists(CRCS, min_size=owned, max_size=owned))
    lanes, step = structured(np.array(rows, np.int64), LANE), draw(NUMBERS)
    one = Position(FINGERPRINT, step, rank, world_size, draw(EPOCHS), draw(EPOCHS), lanes, sizes)
    if not components:
        return one
    points = draw(arrays(np.int64, (POINTS, *shape[::-1]), elements=NUMBERS))
    points[3] = draw(arrays(np.int64, shape[::-1], elements=CRCS))
    sources = structured(points, POINT)
    mixed = replace(FINGERPRINT, mix="from 0: web 1; repeat")
    return replace(one, fingerprint=mixed, sources=sources)


@given(positions())
def test_round_trip_through_json(position: Position) -> None:
    again = Position.from_dict(json.loads(json.dumps(position.to_dict())))
    assert again == position
    assert hash(again) == hash(position)
    assert np.array_equal(again.lanes, position.lanes)
    assert position != replace(position, step=position.step + 1)
    assert position != position.to_dict()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_hostile_data_is_refused(data: Any) -> None:
    with pytest.raises(StateError):
        Position.from_dict(data)


@given(positions(), st.data())
def test_any_damaged_field_is_refused_or_read(position: Position, data: st.DataObject) -> None:
    """Never another exception, and never a position that cannot be written down again."""
    fields = position.to_dict()
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(JSON)
    with contextlib.suppress(StateError):
        assert Position.from_dict(fields).to_dict()[name] == fields[name]


def test_a_damaged_fingerprint_is_refused() -> None:
    fields = FINGERPRINT.to_dict()
    assert Fingerprint.from_dict(fields) == FINGERPRINT
    for broken in (
        {**fields, "lanes": "12"},
        {**fields, "more": 1},
        {},
        None,
        {**fields, "seed": True},
    ):
        with pytest.raises(MalformedPosition):
            Fingerprint.from_dict(broken)


@pytest.mark.parametrize("lanes", [0, 1 << 17, -4])
def test_an_absurd_number_of_lanes_is_refused(lanes: int) -> None:
    position = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1).to_dict()
    position["fingerprint"]["lanes"] = lanes
    with pytest.raises(MalformedPosition, match="lanes"):
        Position.from_dict(position)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("step", 1 << 49, "'step' is not a number from 0 to 281474976710655"),
        ("run_epoch", LAST_EPOCH + 1, "'run_epoch' is not a number from 0 to 2147483648"),
        ("epoch", LAST_EPOCH + 1, "'epoch' is not a number"),
        ("skip", 1, "'skip' is not a number from 0 to 0"),
        ("packed", "", "'packed' does not hold the numbers of all lanes"),
        ("packed", None, "'packed' does not hold"),
        ("ends", None, "'ends' are not settings"),
        ("ends", "[]", "'ends' are not settings"),
        ("ends", '{"seed": 1}', "'ends' are not settings"),
        ("ends", '{"epochs": [1]}', "'ends' are not settings"),
        ("ends", "[" * 200, "'ends' are not settings"),
        ("ends", f'{{"epochs": {"1" * 200}}}', "'ends' are not settings"),
    ],
)
def test_what_no_stream_ever_says_is_refused(name: str, value: Any, words: str) -> None:
    fields = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1).to_dict()
    with pytest.raises(MalformedPosition, match=words):
        Position.from_dict({**fields, name: value})


@pytest.mark.parametrize(
    "since", [None, [1], [1, 3, 0], [1.0, 3], [True, 3], [-1, 3], [3, 3], [1, -1], [1, 8]]
)
def test_a_beginning_by_record_lies_before_the_run_and_the_step(since: Any) -> None:
    by_record = replace(FINGERPRINT, order="record:0123456789abcdef")
    start = Position.start(by_record, [0] * 12, rank=0, world_size=1, epoch=2, step=7)
    fields = start.to_dict()
    for allowed in ([2, 7], [0, 0]):
        assert Position.from_dict({**fields, "since": allowed}).since == tuple(allowed)
    with pytest.raises(MalformedPosition, match="'since'"):
        Position.from_dict({**fields, "since": since})


def test_single_records_skip_no_more_than_travel_together() -> None:
    singles = replace(FINGERPRINT, global_batch=None)
    fields = Position.start(singles, [0] * 12, rank=0, world_size=1).to_dict()
    assert Position.from_dict({**fields, "skip": MOST_SKIPPED}).skip == MOST_SKIPPED
    with pytest.raises(MalformedPosition, match="'skip' is not a number from 0 to 65536"):
        Position.from_dict({**fields, "skip": MOST_SKIPPED + 1})


def test_without_shuffle_there_are_no_rows_of_windows() -> None:
    plain = replace(FINGERPRINT, shuffle=False, seed=0, shuffle_window=0)
    start = Position.start(plain, [0] * 12, rank=0, world_size=1)
    start.lanes["row"][11] = 3
    with pytest.raises(MalformedPosition, match="its order has no shuffle"):
        Position.from_dict(start.to_dict())


@pytest.mark.parametrize("name", NAMES)
def test_no_number_is_larger_than_any_stream_comes(name: str) -> None:
    start = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1)
    start.lanes[name][5] = MOST_CRC if name == "crc" else LARGEST
    assert Position.from_dict(start.to_dict()) == start
    start.lanes[name][5] += 1
    with pytest.raises(MalformedPosition, match="'packed' is out of range"):
        Position.from_dict(start.to_dict())


def test_a_later_version_is_refused_by_name() -> None:
    fields = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1).to_dict()
    with pytest.raises(OtherVersion, match=r"version 4.*reads version 3; upgrade"):
        Position.from_dict({**fields, "version": 4})


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_earlier_version_is_refused(version: int) -> None:
    fields = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1).to_dict()
    with pytest.raises(OtherVersion, match=f"version {version}, and the order .* has changed"):
        Position.from_dict({**fields, "version": version})


OTHER: dict[str, Any] = {
    "order": "record of another index", "lanes": 24, "shuffle": False, "seed": 8,
    "shuffle_window": 1 << 20, "global_batch": None, "stages": "filter app:long",
    "mix": "from 0: web 1; repeat",
}  # fmt: skip


MADE_OF = {
    "order": " (it is made of index, shuffle and ordered)",
    "global_batch": " (it is made of batch_size x world_size)",
    "stages": " (it is made of filter, map, pack, window and length_buckets)",
    "mix": " (it is made of source, weights and exhausted)",
}
"""How the message goes on after a field that is not a setting itself."""


@pytest.mark.parametrize("name", list(OTHER))
def test_the_refusal_names_each_setting_and_both_values(name: str) -> None:
    saved = replace(FINGERPRINT, **{name: OTHER[name]})
    with pytest.raises(OtherOrder) as caught:
        FINGERPRINT.check(saved)
    named = f"the state belongs to another order: {name} was {OTHER[name]!r} and is "
    values = f"{named}{getattr(FINGERPRINT, name)!r}{MADE_OF.get(name, '')}"
    assert caught.value.message.startswith(f"{values}; restore these settings")


def test_every_field_is_checked() -> None:
    assert {"names", "shards", "mix_changes", *OTHER} == {
        field.name for field in fields(Fingerprint)
    }
    for name, value in (("names", "0" * 16), ("shards", 7)):
        with pytest.raises(OtherDataset, match=r"the state belongs to .* open the dataset"):
            FINGERPRINT.check(replace(FINGERPRINT, **{name: value}))  # type: ignore[arg-type]


def test_what_is_refused_can_be_something_else() -> None:
    with pytest.raises(OtherOrder, match=r"the given one belongs .* begin without the given one"):
        FINGERPRINT.check(replace(FINGERPRINT, seed=8), "the given one")


def test_an_order_by_record_without_windows_can_be_restored() -> None:
    plain = replace(FINGERPRINT, order="record:0123456789abcdef", shuffle=False, shuffle_window=0)
    plain.check(plain)
    shuffled = replace(FINGERPRINT, order="record, even windows:0123456789abcdef")
    with pytest.raises(OtherOrder, match=r"shuffle was False .*; restore these settings"):
        shuffled.check(plain)


def test_the_refusal_names_the_settings_that_differ() -> None:
    other = replace(FINGERPRINT, seed=8, lanes=24)
    with pytest.raises(OtherOrder, match=r"lanes was 24 and is 12; seed was 8 and is 7"):
        FINGERPRINT.check(other)
    with pytest.raises(OtherDataset, match="99 shards other than the 100"):
        FINGERPRINT.check(replace(FINGERPRINT, shards=99))
    FINGERPRINT.check(replace(FINGERPRINT))
    assert FINGERPRINT.digest != other.digest


@given(st.data(), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_merge_gives_every_lane_to_its_new_rank(
    data: st.DataObject, before: int, after: int
) -> None:
    components = data.draw(st.integers(0, 3))
    ranks = [
        replace(data.draw(positions(before, rank, components)), step=5, run_epoch=1)
        for rank in range(before)
    ]
    merged = [Position.merge(ranks, rank=rank, world_size=after) for rank in range(after)]
    back = [Position.merge(merged, rank=rank, world_size=before) for rank in range(before)]
    for position, again in zip(ranks, back, strict=True):
        assert np.array_equal(again.lanes, position.lanes)
        assert np.array_equal(again.sources, position.sources)
        assert np.array_equal(again.sizes, position.sizes)


def test_merge_refuses_what_is_not_whole() -> None:
    halves = [Position.start(FINGERPRINT, [0] * 6, rank=rank, world_size=2) for rank in (0, 1)]
    with pytest.raises(MalformedPosition, match="ranks 0 of 2"):
        Position.merge(halves[:1], rank=0, world_size=1)
    with pytest.raises(MalformedPosition, match="ranks 0, 0 of 2"):
        Position.merge([halves[0], halves[0]], rank=0, world_size=1)
    with pytest.raises(MalformedPosition, match="different steps"):
        Position.merge([halves[0], replace(halves[1], step=3)], rank=0, world_size=1)
    with pytest.raises(MalformedPosition, match="single records"):
        Position.merge([replace(half, skip=3) for half in halves], rank=0, world_size=1)
    with pytest.raises(MalformedPosition, match="single records"):
        apart = [replace(halves[0], step=4), replace(halves[1], step=1, skip=3)]
        Position.merge(apart, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="does not divide"):
        Position.merge(halves, rank=0, world_size=5)


MIXED = replace(FINGERPRINT, lanes=2, mix="from 0: web 1; repeat")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": 0}, "names 0 components"),
        ({"components": 257}, "names 257 components"),
        ({"components": None}, "'components' is not a number"),
        ({"components": "2"}, "'components' is not a number"),
        ({"components": 3}, "'packed' does not hold"),
        ({"packed": None}, "'packed' does not hold"),
    ],
)
def test_a_hostile_state_of_a_mix(change: dict[str, Any], message: str) -> None:
    start = Position.start(MIXED, [0] * 4, rank=0, world_size=1)
    start.lanes["taken"] = 7, 8
    start.sources[:] = 9, 9, 9, 9
    with pytest.raises(MalformedPosition, match=message):
        Position.from_dict({**start.to_dict(), **change})


def test_a_mix_names_no_more_shards_than_memory_could_hold() -> None:
    many = replace(MIXED, lanes=1 << 16)
    fields = Position.start(many, [0] * (4 << 16), rank=0, world_size=1).to_dict()
    assert Position.from_dict(fields).components == 4
    with pytest.raises(MalformedPosition, match="names 5 components"):
        Position.from_dict({**fields, "components": 5})


def test_what_a_mix_names_is_where_its_components_stand() -> None:
    position = Position.start(MIXED, range(4), rank=0, world_size=1)
    assert position.components == 2
    assert position.points.tolist() == [
        [(0, 0, 0, 0), (2, 0, 0, 0)],
        [(1, 0, 0, 0), (3, 0, 0, 0)],
    ]
    plain = Position.start(FINGERPRINT, [3] * 12, rank=0, world_size=1)
    assert (plain.components, plain.points["extent"].tolist()) == (1, [3] * 12)


def test_states_of_mixes_of_different_numbers_of_components_do_not_merge() -> None:
    halves = [Position.start(MIXED, [0] * (1 + rank), rank=rank, world_size=2) for rank in (0, 1)]
    with pytest.raises(MalformedPosition, match="different numbers of components"):
        Position.merge(halves, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (["s3://a/x/1", "s3://a/x/2"], ["1", "2"]),
        (["s3://a/x/1", "s3://a/y/1"], ["x/1", "y/1"]),
        (["s3://a/x/one"], ["one"]),
        (["/data/a", "/data/a/b"], ["a", "a/b"]),
        (["plain"], ["plain"]),
    ],
)
def test_names_are_relative_to_the_shared_directory(urls: list[str], names: list[str]) -> None:
    assert relative_names(urls) == names


def test_a_mirror_is_the_same_dataset() -> None:
    there = [f"gs://elsewhere/copy/train-{i}" for i in range(9)]
    here = [f"s3://bucket/train-{i}" for i in range(9)]
    assert names_digest(here) == names_digest(there)
    assert names_digest(here) != names_digest(here[1:])


def test_what_lanes_do_is_in_the_fingerprint_where_they_do_something() -> None:
    filtered = replace(FINGERPRINT, stages="filter a.b:c")
    assert "stages" not in FINGERPRINT.to_dict()
    assert Fingerprint.from_dict(filtered.to_dict()) == filtered
    assert filtered.digest != FINGERPRINT.digest
    with pytest.raises(OtherOrder, match=r"stages was 'filter a\.b:c' and is ''"):
        FINGERPRINT.check(filtered)
    with pytest.raises(MalformedPosition, match="'stages' is not of type str"):
        Fingerprint.from_dict({**FINGERPRINT.to_dict(), "stages": 5})
