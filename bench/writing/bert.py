"""Text for BERT's pre-training, and the script of TensorFlow's models that converts it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.writing.timing import timed

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = "create_pretraining_data.py"
SETTINGS = {"max_seq_length": 128, "max_predictions_per_seq": 20, "dupe_factor": 5}
PAGES = Path(__file__).parents[2] / "docs"
PIECES = 4000
WORDS = 5
"""The fewest words of a line that counts as a sentence."""


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


def _script() -> Callable[[dict[str, Any]], None]:
    """Return the script, as a way to convert."""
    from official.nlp.data import create_pretraining_data as script

    def convert(arguments: dict[str, Any]) -> None:
        source = Path(arguments["source"])
        files = {
            "input_file": source,
            "output_file": f"{arguments['dest']}/x-0.tfrecord",
            "vocab_file": source.with_name("vocab.txt"),
        }
        options = [f"--{name}={value}" for name, value in {**files, **SETTINGS}.items()]
        script.FLAGS([SCRIPT, *options, "--verbosity=-1"])
        script.main([])

    return convert


def main() -> None:
    """Convert as the arguments say, first a little to warm up, and print the report."""
    timed(_script(), json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
