"""Converts a source in one way, and reports how long it took; makes the sources, too.

The script of TensorFlow's models runs in an interpreter that may not have streamrec.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.stopwatch import Arguments, main

CLASSES = 10
HEIGHT, WIDTH = 375, 500
COARSE = 25
"""Pixels of a square of one brightness in a picture, below the noise."""
QUALITY = 95
CSV_COLUMNS = 12
COPY = 1 << 20
SCRIPT = "create_pretraining_data.py"
SETTINGS = {"max_seq_length": 128, "max_predictions_per_seq": 20, "dupe_factor": 5}
PAGES = Path(__file__).parents[2] / "docs"
PIECES = 4000
WORDS = 5
"""The fewest words of a line that counts as a sentence."""

# -- sources ---------------------------------------------------------------------------------------


def make_pictures(directory: Path, pictures: int) -> None:
    """Write JPEGs of some 70 KB into ten classes."""
    from streamrec.formats.images.image import encode_jpeg

    random = np.random.default_rng(0)
    for number in range(pictures):
        path = directory / f"class-{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 200, (HEIGHT // COARSE, WIDTH // COARSE, 3), np.uint8)
        pixels = coarse.repeat(COARSE, axis=0).repeat(COARSE, axis=1)
        pixels += random.integers(0, 24, pixels.shape, np.uint8)
        path.write_bytes(encode_jpeg(pixels, QUALITY))


def make_csv(path: Path, rows: int) -> None:
    """Write a table of integers, floats and words."""
    random = np.random.default_rng(0)
    whole = random.integers(0, 100_000, (rows, CSV_COLUMNS // 2))
    parts = random.random((rows, CSV_COLUMNS // 2))
    head = ",".join(f"column-{number}" for number in range(CSV_COLUMNS + 1))
    lines = (
        f"{','.join(map(str, ints))},{','.join(f'{one:.6f}' for one in floats)},word-{ints[0]}"
        for ints, floats in zip(whole.tolist(), parts.tolist(), strict=True)
    )
    path.write_text("\n".join([head, *lines, ""]))


def make_text(path: Path, documents: int) -> None:
    """Write documents, which are parts of the documentation's pages, and a vocabulary of them."""
    from tokenizers import BertWordPieceTokenizer

    pages = [page.read_text("utf-8") for page in sorted(PAGES.rglob("*.md"))]
    parts = [part.splitlines() for page in pages for part in re.split(r"\n#+ ", page)]
    found = [[line.strip() for line in part if len(line.split()) >= WORDS] for part in parts]
    usable = [lines for lines in found if len(lines) > 1]
    drawn = np.random.default_rng(0).integers(0, len(usable), documents)
    path.write_text("\n\n".join("\n".join(usable[number]) for number in drawn), "utf-8")
    vocabulary = BertWordPieceTokenizer(lowercase=True)
    vocabulary.train_from_iterator(pages, vocab_size=PIECES, show_progress=False)
    vocabulary.save_model(str(path.parent))


# -- ways ------------------------------------------------------------------------------------------


def read_and_copy(arguments: Arguments) -> None:
    """Read the files one after the other, and copy them into one, which is flushed to the disk."""
    with Path(arguments["dest"], "x.bytes").open("wb", COPY) as copy:
        copy.writelines(path.read_bytes() for path in _files(arguments))
        copy.flush()
        os.fsync(copy.fileno())


def read_decode_and_encode(arguments: Arguments) -> None:
    """Read, decode and encode the pictures in as many threads as there are cores."""
    from streamrec.formats.images.image import encode_jpeg, read_picture
    from streamrec.formats.images.picture import OutputForm

    def encoded(path: Path) -> int:
        pixels = read_picture(path.read_bytes(), OutputForm(channels=3)).decode()
        return len(encode_jpeg(pixels, QUALITY))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        sum(threads.map(encoded, _files(arguments)))


def convert_with(*options: str) -> Callable[[Arguments], None]:
    """Return a way that runs ``streamrec write``."""

    def write(arguments: Arguments) -> None:
        from streamrec.cli.write import write as streamrec_write

        dest = f"{arguments['dest']}/x.tfrecord"
        command = [arguments["source"], dest, *options]
        streamrec_write.main(command, standalone_mode=False)

    return write


def write_bert(arguments: Arguments) -> None:
    """Convert text for BERT, with the vocabulary beside it."""
    vocabulary = str(Path(arguments["source"]).with_name("vocab.txt"))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    convert_with("--kind", "bert", "--vocab-file", vocabulary, *options, "--json")(arguments)


def run_script(arguments: Arguments) -> None:
    """Convert text for BERT with the script of TensorFlow's models."""
    from official.nlp.data import create_pretraining_data as script

    source = Path(arguments["source"])
    files = {
        "input_file": source,
        "output_file": f"{arguments['dest']}/x-0.tfrecord",
        "vocab_file": source.with_name("vocab.txt"),
    }
    options = [f"--{name}={value}" for name, value in {**files, **SETTINGS}.items()]
    script.FLAGS([SCRIPT, *options, "--verbosity=-1"])
    script.main([])


WAYS: dict[str, Callable[[Arguments], None]] = {
    "read and copied": read_and_copy,
    "streamrec write": convert_with("--json"),
    "read, decoded and encoded": read_decode_and_encode,
    "streamrec write --encode jpeg": convert_with("--encode", "jpeg", "--json"),
    "streamrec write --kind bert": write_bert,
    "streamrec write --workers 1": convert_with("--workers", "1", "--json"),
    "streamrec write --workers 2": convert_with("--workers", "2", "--json"),
    SCRIPT: run_script,
}


def _files(arguments: Arguments) -> list[Path]:
    return sorted(Path(arguments["source"]).rglob("*.jpg"))


def convert(arguments: Arguments) -> dict[str, Any]:
    """Convert as the arguments say, first a little to warm up, and return the report."""
    way = WAYS[arguments["way"]]
    for name in ("dest", "warm_up"):
        Path(arguments[name]).mkdir(parents=True, exist_ok=True)
    way({"source": arguments["few"], "dest": arguments["warm_up"]})
    began, cpu = time.perf_counter(), _cpu_seconds()
    way(arguments)
    seconds = time.perf_counter() - began
    print()  # behind what a way has printed
    return {"seconds": seconds, "cpu_seconds": _cpu_seconds() - cpu}


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers, which have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main({"convert": convert})
