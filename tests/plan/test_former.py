"""States that a streamrec of before has saved."""

from __future__ import annotations

import contextlib
import json
from base64 import b85encode
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition, OtherOrder, StateError
from streamrec.plan.position import COORDINATES, MOST_TAG, TAKEN, Position
from streamrec.plan.resume_point import Beginning, read_resume_point
from tests.plan.test_position import JSON, positions

COMMON = {
    "names": "0123456789abcdef", "shards": 100, "order": "shard", "lanes": 4, "shuffle": True,
    "seed": 7, "shuffle_window": 268435456, "global_batch": 256,
}  # fmt: skip
PACKED: dict[str, Any] = {
    "version": 1, "fingerprint": COMMON, "step": 50, "rank": 1, "world_size": 2, "run_epoch": 1,
    "epoch": 1, "skip": 0, "round": 1000, "extent": [3, 2], "offset": [0, 4096],
    "record": [0, 17], "window": [0, 5], "row": [6, 0], "taken": [3, 0], "part": [2, 0],
    "tags": [None, "fedcba98"],
}  # fmt: skip
MIXED: dict[str, Any] = {
    "version": 1,
    "fingerprint": {
        **COMMON, "shuffle": False, "seed": 0, "shuffle_window": 0, "global_batch": None,
        "mix": 'from 0: {"code": 0.5, "web": 0.5}; repeat',
    },
    "step": 9, "rank": 0, "world_size": 2, "run_epoch": 0, "epoch": 0, "skip": 3, "round": 69999,
    "components": 2,
    "packed": "0RaF20%HIy0RR920RR920|Eg61poj500#g70001E00000h!X$+00RI35C8xG0{{R<000F500001000000"
    "0961000315C8x",
}  # fmt: skip
BY_RECORD: dict[str, Any] = {
    "version": 1, "fingerprint": {**COMMON, "order": "record:0123456789abcdef"}, "step": 9,
    "rank": 0, "world_size": 2, "run_epoch": 2, "epoch": 2, "skip": 0, "since": [2, 9],
}  # fmt: skip


def tag(number: int) -> int:
    """The short tag that became of a longer one."""
    return number % MOST_TAG + 1


def test_one_of_packs() -> None:
    position = Position.from_dict(PACKED)
    rows = [[3, 2], [0, 4096], [0, 17], [0, 5], [6, 0], [1003, 1000], [2, 0]]
    assert position.lanes.tolist() == rows
    assert position.tags.tolist() == [0, tag(0xFEDCBA98)]
    assert (position.step, position.rank, position.world_size) == (50, 1, 2)
    without = {name: value for name, value in PACKED.items() if name != "part"}
    assert Position.from_dict(without).lanes.tolist() == [*rows[:-1], [0, 0]]


def test_one_of_a_mix() -> None:
    position = Position.from_dict(MIXED)
    rows = [[1, 0], [0, 0], [99, 300], [0, 0], [0, 0], [70000, 69999], [0, 0]]
    assert position.lanes.tolist() == rows
    assert position.sources.tolist() == [[3, 2, 1, 0], [7 << 32, 0, 99, 5000], [1 << 20, 0, 3, 70]]
    assert position.tags.tolist() == [tag(0xFFFFFFFF), 0, tag(0), tag(0x100000)]
    assert position.components == 2


def test_one_by_record() -> None:
    position = Position.from_dict(BY_RECORD)
    assert (position.since, position.step, position.tags.size) == ((2, 9), 9, 0)


@pytest.mark.parametrize("state", [PACKED, MIXED, BY_RECORD])
def test_it_is_saved_in_the_present_form(state: dict[str, Any]) -> None:
    position = Position.from_dict(state)
    again = json.loads(json.dumps(position.to_dict()))
    assert again["version"] == 2
    assert Position.from_dict(again) == position


def test_one_of_windows_by_record_before_they_were_even() -> None:
    saved = Position.from_dict(BY_RECORD).fingerprint
    present = replace(saved, order="record, even windows:0123456789abcdef")
    with pytest.raises(OtherOrder) as raised:
        present.check(saved)
    assert str(raised.value) == (
        "the state belongs to another order: order was 'record:0123456789abcdef' and is 'record, "
        "even windows:0123456789abcdef'; an earlier streamrec saved it, whose windows by record "
        "had other sizes and drew from their chunks unevenly, which no setting restores; go on "
        "with that version, or begin without the state"
    )


def test_one_by_record_without_windows_still_fits() -> None:
    fingerprint = {**BY_RECORD["fingerprint"], "shuffle": False, "seed": 0, "shuffle_window": 0}
    saved = Position.from_dict({**BY_RECORD, "fingerprint": fingerprint}).fingerprint
    saved.check(saved)
    shuffled = replace(saved, shuffle=True, order="record, even windows:0123456789abcdef")
    with pytest.raises(OtherOrder, match="shuffle was False and is True; restore these settings"):
        shuffled.check(saved)


def test_beginnings() -> None:
    assert read_resume_point({"version": 1}) == Beginning()
    assert read_resume_point({"version": 1, "epoch": 3}) == Beginning(3)
    assert read_resume_point({"version": 1, "step": 500}) == Beginning(step=500)


def of_version_1(position: Position) -> dict[str, Any]:
    """As that version saved it."""
    common = {**position.to_dict(), "version": 1}
    del common["packed"]
    arrays, lowest = position.lanes.copy(), int(position.lanes[TAKEN].min())
    arrays[TAKEN] -= lowest
    if not position.sources.size:
        rows = dict(zip(COORDINATES, arrays.tolist(), strict=True))
        tags = [f"{tag:08x}" if tag else None for tag in position.tags.tolist()]
        return {**common, "round": lowest, **rows, "tags": tags}
    numbers = np.where(position.tags, position.tags + 1, 0)
    data = b"".join(octets_of(row) for row in [*arrays, *position.sources, numbers])
    return {**common, "round": lowest, "packed": b85encode(data).decode()}


def octets_of(row: Any) -> bytes:
    width = -(-int(row.max()).bit_length() // 8)
    return bytes([width]) + b"".join(int(number).to_bytes(width, "little") for number in row)


@given(positions())
def test_every_one_loads(position: Position) -> None:
    again = Position.from_dict(json.loads(json.dumps(of_version_1(position))))
    assert np.array_equal(again.lanes, position.lanes)
    assert np.array_equal(again.sources, position.sources)
    assert again.tags.tolist() == [tag(number) if number else 0 for number in position.tags]
    assert replace(again, tags=position.tags) == position


@given(positions(), st.data())
def test_any_damaged_field_is_refused_or_read(position: Position, data: st.DataObject) -> None:
    fields = of_version_1(position)
    name = data.draw(st.sampled_from([name for name in fields if name != "version"]))
    if isinstance(fields[name], list) and data.draw(st.booleans()):
        fields[name][0] = data.draw(JSON)
    else:
        fields[name] = data.draw(JSON)
    with contextlib.suppress(StateError):
        again = Position.from_dict(fields)
        assert Position.from_dict(again.to_dict()) == again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": [1 << 49, 0]}, "'offset' holds no numbers"),
        ({"offset": [1.0, 0]}, "'offset' holds no numbers"),
        ({"offset": [0]}, "'offset' is not a list of 2 numbers"),
        ({"taken": [(1 << 48) + 1, 0]}, "'taken' holds no numbers"),
        ({"taken": [1 << 48, 0]}, "something else"),
        ({"round": -1}, "'round' holds no numbers"),
        ({"round": None}, "'round' holds no numbers"),
        ({"tags": [None]}, "'tags' is not a list of 2 tags"),
        ({"tags": [None, "fedcba9"]}, "'tags' holds something else"),
        ({"tags": [None, "fedcba9?"]}, "'tags' holds something else"),
        ({"tags": [None, 7]}, "'tags' holds something else"),
        ({"part": 5}, "'part' is not a list"),
    ],
)
def test_hostile_lists(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedPosition, match=message):
        Position.from_dict({**PACKED, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": 3}, "'packed' "),
        ({"components": 0}, "names 0 components"),
        ({"packed": None}, "'packed' does not hold"),
        ({"packed": "é"}, "'packed' does not hold"),
        ({"packed": "~~~~~"}, "'packed' does not hold"),
        ({"packed": b85encode(b"\x09" * 99).decode()}, "'packed' does not hold"),
        ({"packed": MIXED["packed"] + "0000000"}, "'packed' holds something else"),
        ({"packed": b85encode(b"\x08" + b"\xff" * 16 + b"\0" * 10).decode()}, "something else"),
        ({"round": 1 << 48}, "something else"),
    ],
)
def test_hostile_texts(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedPosition, match=message):
        Position.from_dict({**MIXED, **change})
