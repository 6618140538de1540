from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError
from streamrec.plan.order.shard_names import Splits, Task
from streamrec.sources import bert
from streamrec.sources.bert import open_bert
from streamrec.sources.reading import Reader, read_source
from tests.sources.test_delimited import fail, records_of
from tests.sources.texts import TEXT, vocabulary_file

LENGTH, MOST = 64, 8
SPECS: Any = {
    "input_ids": sr.FixedLenFeature((LENGTH,), "int64"),
    "input_mask": sr.FixedLenFeature((LENGTH,), "int64"),
    "segment_ids": sr.FixedLenFeature((LENGTH,), "int64"),
    "masked_lm_positions": sr.FixedLenFeature((MOST,), "int64"),
    "masked_lm_ids": sr.FixedLenFeature((MOST,), "int64"),
    "masked_lm_weights": sr.FixedLenFeature((MOST,), "float32"),
    "next_sentence_labels": sr.FixedLenFeature((1,), "int64"),
}
DOCUMENTS = TEXT.split("\n\n")[:300]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory with documents in three files, one of them compressed."""
    texts = ["\n\n".join(DOCUMENTS[n::3]).encode() for n in range(3)]
    (tmp_path / "a.txt").write_bytes(texts[0])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(texts[1]))
    (tmp_path / "c.txt").write_bytes(texts[2] + b"\n")
    (tmp_path / "notes.md").write_text("no text")
    return str(tmp_path)


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        "vocab_file": vocabulary_file(tmp_path_factory.mktemp("vocabulary")),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": MOST,
        "dupe_factor": 2,
    }


def tokens_of(records: list[bytes]) -> list[list[int]]:
    """Return the tokens of each record, with the masked ones in their places."""
    found: Any = sr.parse_example(records, SPECS)
    ids = found["input_ids"].copy()
    rows, slots = np.nonzero(found["masked_lm_weights"])
    ids[rows, found["masked_lm_positions"][rows, slots]] = found["masked_lm_ids"][rows, slots]
    return [row[:used].tolist() for row, used in zip(ids, found["input_mask"].sum(1), strict=True)]


def test_real_text(place: str, settings: dict[str, Any]) -> None:
    source = open_bert(place, **settings)
    records = records_of(source)
    parsed: Any = sr.parse_example(records, SPECS)
    documents = [
        [
            token
            for line in source.records.word_pieces.tokenize(text.split("\n")).to_list()
            for token in line
        ]
        for text in DOCUMENTS
    ]
    every = [" ".join(map(str, document)) for document in documents]
    for tokens, label in zip(tokens_of(records), parsed["next_sentence_labels"], strict=True):
        first, second = tokens[1 : tokens.index(3)], tokens[tokens.index(3) + 1 : -1]
        assert tokens[0] == 2
        assert tokens[-1] == 3
        parts = [" ".join(map(str, part)) for part in (first, second)]
        homes = [{n for n, text in enumerate(every) if part in text} for part in parts]
        assert homes[0]
        assert homes[1]
        assert label == 1 or homes[0] & homes[1]
    assert {name: source.features[name] for name in SPECS} == source.features
    assert source.total is None


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_records_do_not_depend_on_tasks(
    tasks: int, place: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bert, "TEXT_BYTES", 6000)
    source = open_bert(place, **settings)
    whole = [source.read(piece, fail) for piece in source.pieces()]
    assert len(whole) > 5
    reader = Reader(pickle.loads(pickle.dumps(source)), None, skips=False)
    for task in range(tasks):
        found = list(read_source(source, reader, Task(task, tasks), 1))
        for read, block in zip(found, whole[task::tasks], strict=True):
            assert read.block.records.to_list() == block.records.to_list()


def test_seeds_and_places_give_other_records(tmp_path: Path, settings: dict[str, Any]) -> None:
    def written(name: str, **more: Any) -> set[bytes]:
        (tmp_path / name).write_text("\n\n".join(DOCUMENTS[:30]))
        return set(records_of(open_bert(f"{tmp_path}/{name}", **settings | more)))

    found = written("x.txt")
    assert written("x.txt") == found
    assert len(found & written("x.txt", random_seed=2)) < 0.1 * len(found)
    assert len(found & written("y.txt")) < 0.1 * len(found)


def test_duplicates_differ(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "x.txt").write_text("\n\n".join(DOCUMENTS[:50]))
    once = records_of(open_bert(str(tmp_path), **settings | {"dupe_factor": 1}))
    records = records_of(open_bert(str(tmp_path), **settings | {"dupe_factor": 5}))
    assert len(set(records)) > 0.98 * len(records)
    assert set(once) < set(records)
    assert len(records) == pytest.approx(5 * len(once), rel=0.1)


def test_no_document_is_in_two_splits(tmp_path: Path, settings: dict[str, Any]) -> None:
    words = [f"w{n}" for n in range(400)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "v").write_text("\n".join(vocabulary))
    lines = [f"{word} {word} {word}\n{word} {word}" for word in words]
    (tmp_path / "x.txt").write_text("\n\n".join([*lines, *lines]))
    splits = Splits.parse("train=0.8,test=0.2")
    settings["vocab_file"] = str(tmp_path / "v")
    source = open_bert(str(tmp_path / "x.txt"), splits=splits, **settings)
    reader = Reader(source, splits, skips=False)
    found: dict[int, set[int]] = {0: set(), 1: set()}
    for piece in source.pieces():
        read = reader(piece)
        assert read.splits is not None
        tokens = tokens_of(read.block.records.to_list())
        for split, row in zip(read.splits.tolist(), tokens, strict=True):
            found[split].update(row[1:-1])
    assert found[0] & found[1] == {3}
    assert len(found[0] | found[1]) == 401
    assert 0.1 < len(found[1]) / 400 < 0.3
    alone = open_bert(str(tmp_path / "x.txt"), **settings)
    assert source.identity != alone.identity
    assert source.identity["splits"] == {"train": "4/5", "test": "1/5"}


def test_lists_of_files(place: str, tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "list").write_text("a.txt\nb.txt.gz\nc.txt\n")
    listed = open_bert("", metadata_files=[f"{place}/list"], input_files_prefix=place, **settings)
    whole = open_bert(place, **settings)
    assert records_of(listed) == records_of(whole)
    assert listed.identity == whole.identity


def test_text_in_a_store(place: str, settings: dict[str, Any]) -> None:
    with DevStore() as store:
        for path in Path(place).iterdir():
            store.put(f"bucket/text/{path.name}", path.read_bytes())
        there = open_bert("s3://bucket/text", storage_options=store.storage_options, **settings)
        assert records_of(there) == records_of(open_bert(place, **settings))


def test_small_files_have_each_other(tmp_path: Path, settings: dict[str, Any]) -> None:
    for number, text in enumerate(DOCUMENTS[:40]):
        (tmp_path / f"{number}.txt").write_text(text)
    source = open_bert(str(tmp_path), **settings)
    (piece,) = source.pieces()
    assert len(piece) == 40
    assert source.total == sum(len(text.encode()) for text in DOCUMENTS[:40])


def test_what_is_left_is_not_alone(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bert, "TEXT_BYTES", 1000)
    (tmp_path / "a.txt").write_text("\n\n".join(DOCUMENTS[:40]))
    (tmp_path / "b.txt").write_text("The last document.")
    *others, last = open_bert(str(tmp_path), **settings).pieces()
    assert others
    assert min(sum(len(part.data) for part in piece) for piece in others) >= 500
    assert last[-1].path == str(tmp_path / "b.txt")
    assert len(last) > 1


def test_names_of_the_second_version(place: str, settings: dict[str, Any]) -> None:
    source = open_bert(place, use_v2_feature_names=True, **settings)
    assert {"input_word_ids", "input_type_ids"} <= source.features.keys()
    specs: Any = {
        {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}.get(name, name): spec
        for name, spec in SPECS.items()
    }
    found: Any = sr.parse_example(records_of(source), specs)
    assert (found["input_word_ids"][:, 0] == 2).all()


def test_whole_words(place: str, settings: dict[str, Any]) -> None:
    source = open_bert(place, do_whole_word_mask=True, **settings)
    records = records_of(source)
    found: Any = sr.parse_example(records, SPECS)
    for row, tokens in enumerate(tokens_of(records)):
        count = int(found["masked_lm_weights"][row].sum())
        chosen = set(found["masked_lm_positions"][row][:count].tolist())
        continues = source.records.word_pieces.continues
        for at in range(2, len(tokens) - 1):
            if continues[tokens[at]] and tokens[at - 1] not in (2, 3):
                assert (at in chosen) == (at - 1 in chosen)


def test_broken_documents_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"One.\nTwo.\n\nThree.\n\xe4\n\n" + "\n\n".join(DOCUMENTS[:9]).encode())
    source = open_bert(str(path), **settings)
    with pytest.raises(DataError, match=r"x\.txt: line 5 is not UTF-8"):
        records_of(source)
    errors: list[DataError] = []
    assert records_of(source, errors.append)
    assert len(errors) == 1


@pytest.mark.parametrize("text", ["", "\n\n \n", "\u200b\n\n\u200b"])
def test_nothing_to_write(text: str, tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "x.txt").write_text(text)
    assert records_of(open_bert(str(tmp_path), **settings)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"vocab_file": None}, "--vocab-file is missing; give the vocabulary"),
        ({"max_seq_length": 10}, "--max-predictions-per-seq: 8 is more than the 7 tokens of text"),
        ({"min_short_seq_length": 62}, "--min-short-seq-length: 62 is more than the 61 tokens"),
        ({"metadata_files": ["x"]}, "give either SOURCE or --metadata-files"),
        ({"input_files_prefix": "x"}, "--input-files-prefix needs --metadata-files"),
    ],
)
def test_settings(given: Any, words: str, place: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=words):
        open_bert(place, **settings | given)


def test_documents_of_one_line_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """All labels would say that the second part comes from elsewhere."""
    (tmp_path / "x.txt").write_text("one line\n\nanother line\n\na third one\n")
    with pytest.raises(DataError, match=r"x\.txt: line 1: this document and the 2 behind it have"):
        records_of(open_bert(str(tmp_path / "x.txt"), **settings))
    (tmp_path / "x.txt").write_text("one line\n\nanother line\nof two\n\na third one\n")
    assert records_of(open_bert(str(tmp_path / "x.txt"), **settings))
