"""Real text, the documentation's own pages, and a vocabulary of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
TEXT = "\n\n".join(page.read_text("utf-8") for page in PAGES)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary() -> list[str]:
    """Return the pieces: characters, the text's frequent words, and frequent ends of words."""
    words = Counter(re.findall(r"\w+|[^\w\s]", TEXT.lower()))
    ends = Counter(word[-3:] for word in words.elements() if len(word) > 4)
    characters = sorted({character for word in words for character in word})
    return [
        *SPECIAL,
        *characters,
        *(f"##{character}" for character in characters),
        *(word for word, _ in words.most_common(900) if len(word) > 1),
        *(f"##{end}" for end, _ in ends.most_common(100)),
    ]


def vocabulary_file(directory: Path) -> str:
    path = directory / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in vocabulary()), encoding="utf-8")
    return str(path)
