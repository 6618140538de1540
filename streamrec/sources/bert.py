"""Text as records of BERT's pre-training: pairs of sentences with masked tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError
from streamrec.sources.source import Block, Option, SourceKind, files_digest, files_of
from streamrec.sources.table import text_pieces, total_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.plan.order.shard_names import Splits
    from streamrec.sources.bert_records import BertRecords
    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.sources.table import TextPiece
    from streamrec.stores.stored_files import StoredFile

SUFFIXES = (".txt", ".txt.gz")
"""The files of a directory. They do not tell the kind: other directories have notes in them."""
TEXT_BYTES = 1 << 20
"""Bytes of text that one piece has, about. With ten duplicates it gives 50 MB of records, or twice
that of documents of a few sentences, whose pairs are mostly padding."""


@dataclass(frozen=True)
class BertText:
    """Files of one sentence a line, with a blank line between documents."""

    reads_in: ClassVar[ReadsIn] = "processes"
    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    files: list[StoredFile]
    records: BertRecords

    @property
    def total(self) -> int | None:
        """The bytes of all files, which of compressed ones are not known."""
        return total_bytes(self.files)

    @property
    def features(self) -> dict[str, str]:
        """The features of all records."""
        return self.records.features

    @property
    def identity(self) -> Any:
        """The name and version of the records."""
        names = [file.name for file in self.files]
        return {
            "text": names if len(names) <= 100 else f"{len(names)} files",
            "digest": files_digest((file.name, file) for file in self.files),
            **self.records.identity,
        }

    def pieces(self) -> Iterator[list[TextPiece]]:
        """Yield whole documents of some MB, of as many files as it takes.

        The last piece has what is left over, too: a document alone would have no other for the
        second parts of its pairs.
        """
        from streamrec.sources.bert_text import document_end

        previous: list[TextPiece] = []
        gathered: list[TextPiece] = []
        size = 0
        for file in self.files:
            for piece in text_pieces(file, end_of=document_end, what="document", size=TEXT_BYTES):
                gathered.append(piece)
                size += len(piece.data)
                if size >= TEXT_BYTES // 2:
                    if previous:
                        yield previous
                    previous, gathered, size = gathered, [], 0
        yield previous + gathered

    def read(self, piece: list[TextPiece], refuse: Refuse) -> Block:
        """Make the records of documents, in a random order."""
        from streamrec.sources.bert_text import documents_of
        from streamrec.values.columns import BytesColumn

        documents = [document for part in piece for document in documents_of(part, refuse)]
        if not piece:
            return Block(BytesColumn.of([]), 0, [])
        records, keys = self.records.make(documents, (piece[0].path, piece[0].line))
        return Block(records, sum(part.amount for part in piece), keys)


def open_bert(
    place: str,
    *,
    vocab_file: str | None = None,
    do_lower_case: bool = True,
    metadata_files: Sequence[str] = (),
    input_files_prefix: str = "",
    splits: Splits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **form: Any,
) -> BertText:
    """Open text; see :class:`BertText`.

    Args:
        place: A path, a URL, a pattern, or a directory of text; empty where lists name the files.
        vocab_file: The vocabulary's path.
        do_lower_case: The vocabulary is one of lower case.
        metadata_files: The paths of lists of files, one a line.
        input_files_prefix: The directory of listed paths that are not absolute.
        splits: The splits that the records are divided over.
        storage_options: fsspec's options, for URLs.
        form: The settings of :class:`BertForm`.

    Raises:
        ConfigError: There is no text or no vocabulary, or an argument is wrong.
    """
    if vocab_file is None:
        raise ConfigError(
            "--vocab-file is missing; give the vocabulary of the model, one word piece a line"
        )
    if bool(place) == bool(metadata_files):
        raise ConfigError("give either SOURCE or --metadata-files; both name the files to read")
    if input_files_prefix and not metadata_files:
        raise ConfigError("--input-files-prefix needs --metadata-files; add it, or leave both")
    from streamrec.sources.bert_records import BertForm, BertRecords
    from streamrec.sources.bert_text import WordPieces, list_files

    settings = BertForm(**form)
    settings.check()
    word_pieces = WordPieces.load(vocab_file, lower=do_lower_case)
    files = (
        list_files(metadata_files, input_files_prefix, storage_options)
        if metadata_files
        else files_of(place, SUFFIXES, storage_options)
    )
    return BertText(files, BertRecords(word_pieces, settings, splits))


KIND = SourceKind(
    "bert",
    open_bert,
    options=(
        Option(
            name="vocab_file",
            metavar="FILE",
            is_place=True,
            help="BERT: the vocabulary, one word piece a line; required.",
        ),
        Option(
            name="do_lower_case",
            type=bool,
            has_opposite=True,
            help="BERT: put text in lower case, for an uncased model.  [yes]",
        ),
        Option(
            name="do_whole_word_mask", type=bool, help="BERT: mask all pieces of a word together."
        ),
        Option(
            name="max_seq_length",
            type=int,
            least=5,
            metavar="N",
            help="BERT: the most tokens of a pair.  [128]",
        ),
        Option(
            name="max_predictions_per_seq",
            type=int,
            least=1,
            metavar="N",
            help="BERT: the most masked tokens of a pair.  [20]",
        ),
        Option(
            name="masked_lm_prob",
            type=float,
            least=0,
            most=1,
            metavar="FRACTION",
            help="BERT: the part of the tokens that is masked.  [0.15]",
        ),
        Option(
            name="short_seq_prob",
            type=float,
            least=0,
            most=1,
            metavar="FRACTION",
            help="BERT: the part of the documents with shorter pairs.  [0.1]",
        ),
        Option(
            name="min_short_seq_length",
            type=int,
            least=2,
            metavar="N",
            help="BERT: the fewest tokens that shorter pairs are filled to.  [2]",
        ),
        Option(
            name="random_seed", type=int, metavar="N", help="BERT: the seed of all draws.  [12345]"
        ),
        Option(
            name="dupe_factor",
            type=int,
            least=1,
            metavar="N",
            help="BERT: how often each document is used, with other pairs and masks.  [10]",
        ),
        Option(
            name="metadata_files",
            metavar="FILE",
            is_repeatable=True,
            is_place=True,
            help="BERT: a list of files to read, one a line, in place of SOURCE. Repeatable.",
        ),
        Option(
            name="input_files_prefix",
            metavar="DIRECTORY",
            is_place=True,
            help="BERT: where the listed files are; it may be a URL.",
        ),
        Option(
            name="use_v2_feature_names",
            type=bool,
            help="BERT: name features input_word_ids and input_type_ids, as newer models do.",
        ),
    ),
)
