from __future__ import annotations

import json
import zlib
from base64 import b64decode
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import MalformedAudit
from streamrec.formats.shards.tfrecord import frame
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.streams import audit_part
from streamrec.streams.audit_part import (
    DIGEST,
    MOST_RECORDS,
    LoggedStep,
    Part,
    RecordList,
    Stretch,
    digest_of,
    from_varints,
    read_varint,
    varints,
)
from tests.support import examples

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=90)
FAR = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 40)), max_size=20)


def runs_of(pairs: list[tuple[int, int]]) -> RecordList:
    shards, records = np.array(pairs, np.int64).reshape(-1, 2).T
    return RecordList.of(shards.astype(np.int32), records)


@given(PAIRS | FAR)
@settings(max_examples=examples(300))
def test_runs_are_the_records(pairs: list[tuple[int, int]]) -> None:
    runs = runs_of(pairs)
    shards, records = runs.pairs()
    assert list(zip(shards.tolist(), records.tolist(), strict=True)) == sorted(pairs)
    size, at = read_varint(runs.encode(), 0)
    content = runs.encode()[at:]
    assert size == len(content)
    again = RecordList.decode(content)
    assert all((a == b).all() for a, b in zip(again, runs, strict=True))


def test_successive_records_are_one_run() -> None:
    runs = runs_of([(1, 7), (1, 5), (1, 6), (2, 8), (1, 9)])
    assert [column.tolist() for column in runs] == [[1, 1, 2], [5, 9, 8], [3, 1, 1]]
    assert len(runs.encode()) == 10


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=50))
@settings(max_examples=examples(200))
def test_varints(numbers: list[int]) -> None:
    data = varints(np.array(numbers, np.int64))
    assert from_varints(data).tolist() == numbers
    at, read = 0, []
    while at < len(data):
        number, at = read_varint(data, at)
        read.append(number)
    assert read == numbers


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\xff" * 9 + b"\x01"])
def test_no_varint(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"incomplete|too long"):
        from_varints(data)
    with pytest.raises(ValueError, match="incomplete"):
        read_varint(data, 1 if data[0] == 1 else 0)


@given(st.binary(max_size=60))
@settings(max_examples=examples(500))
def test_any_bytes_are_bounded(data: bytes) -> None:
    with suppress(ValueError):
        runs = RecordList.decode(data)
        assert 0 <= runs.counts.sum() <= MOST_RECORDS
        assert min(map(int, runs.first), default=0) >= 0
        assert all((column >= 0).all() for column in runs.pairs())


def test_sums_that_would_wrap_around() -> None:
    huge = np.array([1, 1, 1, 1, (1 << 62), (1 << 62), (1 << 62), 0, 0], np.int64)
    with pytest.raises(ValueError, match="too large"):
        RecordList.decode(varints(huge))


FINGERPRINT = Fingerprint(
    "ab", 2, "record:cd", 4, shuffle=True, seed=3, shuffle_window=0, global_batch=8
)
HEADER: dict[str, Any] = {
    "rank": 1, "world_size": 2, "fingerprint": FINGERPRINT.to_dict(), "settings": {}
}  # fmt: skip
STATE = {"version": 3}
LISTS = st.none() | PAIRS.map(runs_of)


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    step = draw(st.integers(0, 1 << 40))
    stretch = Stretch(step, STATE)
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            entry = LoggedStep(stretch.end, draw(st.integers(1, 1 << 30)), b"")
        else:
            digest = draw(st.binary(min_size=DIGEST, max_size=DIGEST))
            steps = draw(st.sampled_from([1, 1, 2, 300]))
            entry = LoggedStep(stretch.end, steps, digest, draw(LISTS), draw(LISTS))
        stretch.entries.append(entry)
    return stretch


def plain(part: Part) -> Any:
    """Return a part in a form that can be compared."""
    return [
        (
            s.step,
            s.state,
            [(e[:3], [r and [c.tolist() for c in r] for r in e[3:]]) for e in s.entries],
        )
        for s in part.stretches
    ]


@given(st.lists(stretches(), max_size=3))
@settings(max_examples=examples(100))
def test_an_object_is_read_as_it_was_written(some: list[Stretch]) -> None:
    part = Part(HEADER, some)
    again = Part.parse(part.encode(), "log")
    assert plain(again) == plain(part)
    assert again.header == {**HEADER, "audit": 1, "stretches": len(some)}
    assert again.fingerprint == FINGERPRINT


def small() -> bytes:
    entries = [
        LoggedStep(7, 1, bytes(range(16))),
        LoggedStep(8, 1, bytes(16), runs_of([(0, 3), (1, 4)]), runs_of([(1, 5)])),
        LoggedStep(9, 30, b""),
    ]
    return Part(HEADER, [Stretch(7, STATE, entries)]).encode()


FROZEN = (
    "2wAAAAAAAAAYaTpueyJyYW5rIjogMSwgIndvcmxkX3NpemUiOiAyLCAiZmluZ2VycHJpbnQiOiB7Im5hbWVzIjog"
    "ImFiIiwgInNoYXJkcyI6IDIsICJvcmRlciI6ICJyZWNvcmQ6Y2QiLCAibGFuZXMiOiA0LCAic2h1ZmZsZSI6IHRy"
    "dWUsICJzZWVkIjogMywgInNodWZmbGVfd2luZG93IjogMCwgImdsb2JhbF9iYXRjaCI6IDh9LCAic2V0dGluZ3Mi"
    "OiB7fSwgImF1ZGl0IjogMSwgInN0cmV0Y2hlcyI6IDF9tssecCQAAAAAAAAAQiuATXsic3RlcCI6IDcsICJzdGF0"
    "ZSI6IHsidmVyc2lvbiI6IDN9fcJzz2EpAAAAAAAAADf/XwB4nGNgYGRiZmFlY+fg5OLm4eXjZ2NAA2wMjMwsDAzM"
    "jKwMHHIAEo8AvE3A/3k="
)
"""An object of version 1, as it was first written: logs are kept for years."""


def test_an_old_object_is_read() -> None:
    part = Part.parse(b64decode(FROZEN), "log")
    assert plain(part) == plain(Part.parse(small(), "log"))
    assert part.header == {**HEADER, "audit": 1, "stretches": 1}


def test_each_end_before_the_last_byte_is_told() -> None:
    data = small()
    for end in range(len(data)):
        with pytest.raises(MalformedAudit, match="s3://b/log"):
            Part.parse(data[:end], "s3://b/log")


@given(st.integers(0, len(small()) - 1), st.integers(1, 255))
@settings(max_examples=examples(150))
def test_each_changed_byte_is_told(at: int, change: int) -> None:
    data = bytearray(small())
    data[at] ^= change
    with pytest.raises(MalformedAudit, match="damaged"):
        Part.parse(bytes(data), "log")


@given(st.binary(max_size=200))
@settings(max_examples=examples(200))
def test_any_bytes(data: bytes) -> None:
    with suppress(MalformedAudit):
        Part.parse(data, "log")
    framed = frame(json.dumps({"audit": 1, "stretches": 1, **HEADER}).encode())
    framed += frame(b'{"step": 3, "state": {"version": 3}}') + frame(zlib.compress(data))
    with suppress(MalformedAudit):
        assert all(stretch.end >= 3 for stretch in Part.parse(framed, "log").stretches)


VALUES = st.recursive(
    st.none() | st.integers(-1, 1 << 65) | st.text(max_size=3) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.sampled_from([*HEADER, "audit", "stretches"]), VALUES, VALUES, VALUES)
@settings(max_examples=examples(150))
def test_any_mappings(name: str, value: Any, step: Any, state: Any) -> None:
    header = {"audit": 1, "stretches": 1, **HEADER, name: value}
    head = {"step": step, "state": state}
    frames = [json.dumps(header).encode(), json.dumps(head).encode(), zlib.compress(bytes(17))]
    with suppress(MalformedAudit):
        part = Part.parse(b"".join(map(frame, frames)), "log")
        assert 0 <= part.header["rank"] < part.header["world_size"]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "it is empty; take it out"),
        ([b"[]"], "not a mapping"),
        ([b"{}"], "version is None, but this streamrec reads 1"),
        ([json.dumps({"audit": 1, "stretches": 1, **HEADER, "rank": 2}).encode()], "rank 2 of 2"),
        (
            [json.dumps({"audit": 1, "stretches": 1, **HEADER, "settings": 3}).encode()],
            "no settings",
        ),
        (
            [json.dumps({"audit": 1, "stretches": 1, **HEADER}).encode(), b"{}"],
            "its end is missing",
        ),
        ([b"\xff"], "utf-8"),
        ([b"[" * 100_000], "log"),
    ],
)
def test_what_no_log_has(frames: list[bytes], words: str) -> None:
    with pytest.raises(MalformedAudit, match=words):
        Part.parse(b"".join(map(frame, frames)), "log")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"plain", "header"),
        (zlib.compress(bytes(17)) + b"more", "incomplete"),
        (zlib.compress(bytes(17))[:-1], "incomplete"),
        (zlib.compress(bytes(5)), "incomplete"),
        (zlib.compress(b"\x20" + bytes(16)), "flags 32"),
        (zlib.compress(b"\x0a" + bytes(16)), "flags 10"),
        (zlib.compress(b"\x08\x00"), "incomplete"),
        (zlib.compress(b"\x01\xff\xff\xff\x01" + bytes(16)), "incomplete"),
        (zlib.compress(b"\x08\x01" * 9), "too many"),
        (zlib.compress(bytes(2000)), "too many"),
    ],
)
def test_entries_that_no_log_has(body: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_part, "MOST_ENTRIES", 8)
    monkeypatch.setattr(audit_part, "LARGEST", 1000)
    frames = [
        json.dumps({"audit": 1, "stretches": 1, **HEADER}).encode(),
        b'{"step": 0, "state": {"version": 3}}',
    ]
    with pytest.raises(MalformedAudit, match=words):
        Part.parse(b"".join(map(frame, [*frames, body])), "log")


def test_the_digest_is_that_of_the_documentation() -> None:
    digest = digest_of(np.array([0, 1], np.int32), np.array([5, 1 << 40]))
    assert digest.hex() == "e4c575b01a847904d2629a7e41433ba5"
    assert digest != digest_of(np.array([1, 0]), np.array([1 << 40, 5]))
