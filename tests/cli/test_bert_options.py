from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.cli.bert_options import bert_options
from streamrec.sources.opening import KINDS
from tests.cli.support import assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.datasets.datasets import manifest, records
from tests.sources.texts import PAGES, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path

BERT = ["--kind", "bert", "--dupe-factor", 1]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of text, as a file of the name that text has."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "page.txt"
    path.write_bytes(PAGES[0].read_bytes())
    return path


def test_the_options_are_those_of_the_kind() -> None:
    def verb() -> None: ...

    names = {option.name for option in bert_options(verb).__click_params__}  # type: ignore[attr-defined]
    assert names | {"splits"} == KINDS["bert"].options


def test_text(page: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x.tfrecord"
    vocabulary = vocabulary_file(tmp_path)
    options = [*BERT, "--vocab-file", vocabulary, "--shards", 2, "--no-do-lower-case"]
    outcome = cli("write", page, into, *options, "--masked-lm-prob", "0.2", "--workers", 1)
    written = records(tmp_path / "out")
    assert outcome == (0, f"{into}: {sum(map(len, written))} records\n", "")
    assert len(written) == 2
    kept = manifest(tmp_path / "out")
    assert kept.features is not None
    assert kept.features["masked_lm_weights"] == "float32"
    source = kept.settings.source
    assert source["text"] == ["page.txt"]
    assert source["masked_lm_prob"] == 0.2
    assert source["do_lower_case"] is False
    assert len(source["vocabulary"]) == 64


def test_splits_are_those_of_documents(page: Path, tmp_path: Path) -> None:
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path), "--shards", 2, "--workers", 1]
    outcome = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.7,test=0.3")
    assert outcome.code == 0, outcome
    assert manifest(tmp_path / "out", "test").settings.source["splits"]["test"] == "3/10"
    again = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.7,test=0.3")
    assert again.out.count("it was complete already") == 2
    other = cli("write", page, f"{tmp_path}/out/", *options, "--split", "train=0.8,test=0.2")
    assert_one_sentence(other, 2, "its source differs in splits")


def test_lists_stand_for_a_source(page: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("page.txt\n")
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path), "--workers", 1, "--dry-run"]
    listed = ["--metadata-files", tmp_path / "list", "--input-files-prefix", tmp_path]
    found = cli("write", f"{tmp_path}/out/x", *options, *listed, "--json")
    assert (
        found.object["splits"]
        == cli("write", page, f"{tmp_path}/out/x", *options, "--json").object["splits"]
    )
    both = cli("write", page, f"{tmp_path}/out/x", *options, *listed)
    assert_one_sentence(both, 2, "give either SOURCE or --metadata-files")


def test_refusals(page: Path, tmp_path: Path) -> None:
    into = tmp_path / "out" / "x"
    assert_one_sentence(cli("write", page, into, *BERT), 2, "--vocab-file is missing")
    assert_one_sentence(cli("write", page, *BERT), 2, "give DEST behind SOURCE")
    other = cli("write", page, into, "--kind", "csv", "--dupe-factor", 3)
    assert_one_sentence(other, 2, "--dupe-factor does not go with", "csv")
    options = [*BERT, "--vocab-file", vocabulary_file(tmp_path)]
    long = cli("write", page, into, *options, "--max-seq-length", 16)
    assert_one_sentence(long, 2, "--max-predictions-per-seq", "13")
    page.write_bytes(b"a\n\xff\n\nb\nc\n")
    assert_one_sentence(cli("write", page, into, *options, "--workers", 1), 1, "page.txt", "line 2")
    skipped = cli("write", page, into, *options, "--on-error", "skip", "--workers", 1)
    assert skipped.code == 0
    assert "1 record was skipped" in skipped.out
