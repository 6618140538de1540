from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.formats.examples.packing import Packer, Packs, Sequences
from streamrec.values.columns import BytesColumn, Ragged, Sparse, offsets_of

pytestmark = pytest.mark.both_kernels

Documents = list[list[int]]

DOCUMENTS = st.lists(st.integers(0, 12), max_size=25).map(
    lambda lengths: [[100 * i + k for k in range(n)] for i, n in enumerate(lengths, start=1)]
)
PACKS = st.one_of(
    st.builds(Pack, length=st.integers(1, 10), split=st.just(True), padding=st.just(-1)),
    st.builds(
        Pack,
        length=st.integers(1, 10),
        bins=st.integers(1, 4),
        overlong=st.sampled_from(["truncate", "drop"]),
        documents=st.one_of(st.none(), st.integers(1, 3)),
        padding=st.just(-1),
    ),
)


def columns_of(documents: Documents) -> dict[str, Any]:
    values = np.array([value for document in documents for value in document], np.int64)
    lengths = np.array([len(document) for document in documents], np.int64)
    return {"t": Ragged(values, offsets_of(lengths))}


def rows_of(packs: Packs | None) -> list[tuple[list[int], list[int], list[int]]]:
    if packs is None:
        return []
    names = ("t", "t_segment_ids", "t_positions")
    return list(zip(*(packs.columns[name].tolist() for name in names), strict=True))


def points_of(packs: Packs | None) -> list[tuple[int, int]]:
    if packs is None:
        return []
    return list(zip(packs.next.tolist(), packs.part.tolist(), strict=True))


def packed(packer: Packer, parts: list[Documents]) -> tuple[list[Any], list[tuple[int, int]]]:
    rows, points = [], []
    for part in parts:
        packs = packer.add(columns_of(part))
        rows += rows_of(packs)
        points += points_of(packs)
    last = packer.flush()
    return rows + rows_of(last), points + points_of(last)


def pieces_of(rows: list[Any]) -> list[list[int]]:
    """Return the pieces of each sequence, in the order of the packs."""
    pieces: list[list[int]] = []
    for values, segments, positions in rows:
        for value, segment, position in zip(values, segments, positions, strict=True):
            if not segment:
                assert (value, position) == (-1, 0)
            elif position == 0:
                pieces.append([value])
            else:
                pieces[-1].append(value)
                assert len(pieces[-1]) == position + 1
        numbers = [n for n in segments if n]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(1, max(numbers) + 1))
        assert segments == numbers + [0] * (len(segments) - len(numbers)), "padding comes last"
    return pieces


def first_fit_oracle(documents: Documents, pack: Pack) -> list[list[list[int]]]:
    """Packs of documents, as plainly as it can be said."""
    assert isinstance(pack.length, int)
    done: list[list[list[int]]] = []
    group: list[list[list[int]]] = []
    for document in documents:
        if not document or (len(document) > pack.length and pack.overlong == "drop"):
            continue
        document = document[: pack.length]
        for held in group:
            has_place = pack.documents is None or len(held) < pack.documents
            if has_place and sum(map(len, held)) + len(document) <= pack.length:
                held.append(document)
                break
        else:
            if len(group) == pack.bins:
                done, group = done + group, []
            group.append([document])
    return done + group


@given(DOCUMENTS, PACKS)
def test_every_value_is_there_once_or_counted(documents: Documents, pack: Pack) -> None:
    packer = Packer(pack)
    rows, _ = packed(packer, [documents])
    given_values = [value for document in documents for value in document]
    delivered = [value for piece in pieces_of(rows) for value in piece]
    assert len(delivered) == len(set(delivered))
    assert set(delivered) <= set(given_values)
    assert len(given_values) == len(delivered) + packer.dropped_values
    if pack.split:
        assert delivered == given_values
        assert all(0 not in segments for _, segments, _ in rows[:-1])


@given(DOCUMENTS, PACKS.filter(lambda pack: not pack.split))
def test_first_fit_is_what_it_says(documents: Documents, pack: Pack) -> None:
    packer = Packer(pack)
    rows, _ = packed(packer, [documents])
    assert [pieces_of([row]) for row in rows] == first_fit_oracle(documents, pack)
    over = [d for d in documents if isinstance(pack.length, int) and len(d) > pack.length]
    assert packer.dropped_documents == (len(over) if pack.overlong == "drop" else 0)


@given(DOCUMENTS, PACKS, st.lists(st.integers(0, 25), max_size=4))
def test_documents_may_come_in_any_parts(documents: Documents, pack: Pack, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(c, len(documents)) for c in cuts), len(documents)]
    parts = [documents[a:b] for a, b in pairwise(bounds)]
    assert packed(Packer(pack), parts) == packed(Packer(pack), [documents])


@given(DOCUMENTS, PACKS)
def test_packing_goes_on_from_behind_every_pack(documents: Documents, pack: Pack) -> None:
    rows, points = packed(Packer(pack), [documents])
    assert len(rows) == len(points)
    for k, (number, part) in enumerate(points, start=1):
        again, more = packed(Packer(pack, part), [documents[number:]])
        assert rows[:k] + again == rows
        assert [(n + number, p) for n, p in more] == points[k:]


def test_an_epoch_s_end_begins_a_new_pack() -> None:
    packer = Packer(Pack(10))
    packer.add(columns_of([[1, 2], [3]]))
    first = packer.flush()
    assert first is not None
    assert pieces_of(rows_of(first)[:0]) == []
    assert first.columns["t"].tolist() == [[1, 2, 3] + [0] * 7]
    assert packer.first_held == 2
    assert packer.flush() is None
    packer.add(columns_of([[4]]))
    second = packer.flush()
    assert second is not None
    assert (second.first.tolist(), second.next.tolist()) == ([2], [3])


def test_each_feature_has_its_own_length() -> None:
    columns = {
        "inputs": Ragged(np.arange(7, dtype=np.int32), np.array([0, 3, 5, 7])),
        "targets": Ragged(np.arange(4, dtype=np.float32), np.array([0, 1, 4, 4])),
        "other": np.zeros(3),
    }
    packer = Packer(Pack({"targets": 4, "inputs": 5}, bins=1))
    first = packer.add(columns)
    last = packer.flush()
    assert last is not None
    assert first.columns["inputs"].tolist() == [[0, 1, 2, 3, 4]]
    assert first.columns["inputs"].dtype == np.int32
    assert first.columns["targets_segment_ids"].tolist() == [[1, 2, 2, 2]]
    assert first.columns["targets_positions"].tolist() == [[0, 0, 1, 2]]
    assert last.columns["inputs"].tolist() == [[5, 6, 0, 0, 0]]
    assert last.columns["targets"].dtype == np.float32
    assert last.columns["targets_segment_ids"].tolist() == [[0] * 4]
    assert "other" not in first.columns


@pytest.mark.parametrize(
    "column",
    [
        Ragged(np.array([9, 1, 2, 3]), np.array([1, 3, 3, 4])),
        Sparse(np.array([[0, 0], [0, 1], [2, 0]]), np.array([1, 2, 3]), (3, 2)),
    ],
)
def test_columns_of_sequences(column: Any) -> None:
    sequences = Sequences.of({"t": column}, ["t"])
    assert sequences.values["t"].tolist() == [1, 2, 3]
    assert sequences.lengths.tolist() == [[2], [0], [1]]


def test_a_dense_column_has_sequences_of_one_length() -> None:
    sequences = Sequences.of({"t": np.arange(6).reshape(3, 2)}, ["t"])
    assert sequences.splits.tolist() == [[0, 2, 4, 6]]


@pytest.mark.parametrize(
    "columns",
    [
        {"t": np.arange(3)},
        {"t": BytesColumn.of([b"a"])},
        {"t": Ragged(BytesColumn.of([b"a"]), np.array([0, 1]))},
        {"t": Ragged(np.zeros((2, 2)), np.array([0, 2]))},
    ],
)
def test_what_is_no_sequence_is_named(columns: Any) -> None:
    with pytest.raises(ConfigError, match="'t' is not a sequence of them; name"):
        Packer(Pack(4)).add(columns)
    with pytest.raises(ConfigError, match="'u' is not a column"):
        Packer(Pack({"u": 4})).add(columns)


def test_features_of_different_lengths_cannot_be_split_together() -> None:
    columns = {**columns_of([[1, 2]]), "u": np.zeros((1, 3))}
    with pytest.raises(ConfigError, match=r"features \(t, u\) must have one length"):
        Packer(Pack(4, split=True)).add(columns)


@pytest.mark.parametrize("pack", [Pack(4, bins=2), Pack(4, split=True)])
def test_positions_that_cannot_be(pack: Pack) -> None:
    with pytest.raises(MalformedPosition):
        Packer(pack, 2**62).add(columns_of([[1, 2]]))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"length": 0}, "integers from 1 up"),
        ({"length": {}}, "integers from 1 up"),
        ({"length": {"a": -1}}, "integers from 1 up"),
        ({"length": 4, "bins": 0}, "integers from 1 up"),
        ({"length": 4, "documents": 0}, "integers from 1 up"),
        ({"length": "4"}, "integers from 1 up"),
        ({"length": 4, "overlong": "keep"}, "overlong of a Pack is 'keep'"),
        (
            {"length": 4, "split": True, "documents": 2},
            "one length for all features, and no documents",
        ),
        (
            {"length": {"a": 4, "b": 5}, "split": True},
            "one length for all features, and no documents",
        ),
    ],
)
def test_settings_that_contradict(values: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Pack(**values)
