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
from streamrec.streams.audit_part import DIGEST, LoggedStep, Part, Stretch, digest_of
from tests.streams.test_audit_runs import PAIRS, runs_of
from tests.support import examples

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
